"""What MLflow lacks of a home's earlier runs, sent from the record while a later run is at work.

A run that is cancelled or killed in its first iterations ends before MLflow, whose import takes seconds, has
its figures; others end while a server is away. Each run that has ended is looked at once: a row of
`run_links` says that MLflow has it all. Images, weights and reports are not sent again.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from storage.clock import now
from storage.home import Home
from storage.record.reading import Records
from storage.record.run_notes import NoteStore
from storage.record.run_status import activity_of, run_is_alive, shown_status
from storage.record.run_store import RunRow, RunStore
from storage.tracking.figures import recorded_figures
from storage.tracking.mlflow_run import MlflowRun, flat_settings, tags_of

MOST_RUNS = 20
"""Earlier runs that one run looks at, the newest first."""

SETTLED_S = 3600.0
"""So long after its end a run of another machine, whose process cannot be seen, sends nothing more."""

_PLACE = "mlflow_complete"
"""In `run_links`: noted after the run's end, MLflow has the whole run."""


class Backlog:
    """Sends what is missing, first of the run that is at work, then of earlier ones, one at a call.

    Args:
        home: where the runs are.
        server: the setting `tracking.uri` of the run at work; runs of other servers are left to these.
        began_at: when the run at work began or was resumed (Unix seconds); what comes after, it sends itself.
    """

    def __init__(self, home: Home, server: str, began_at: float) -> None:
        self._home = home
        self._server = server
        self._began_at = began_at
        self._own_tried = False
        self._tried: set[str] = set()
        self._ended = False

    def has_more(self) -> bool:
        """Whether there may be a further run to look at."""
        return not self._ended and len(self._tried) < MOST_RUNS

    def send_within(self, own: MlflowRun, limit_s: float) -> None:
        """Send of one run after the other, as long as a limit is not over; as `send_next`."""
        ends_at_s = time.monotonic() + limit_s
        while self.has_more() and time.monotonic() < ends_at_s:
            self.send_next(own)

    def send_next(self, own: MlflowRun) -> None:
        """Send what MLflow lacks of one run; one that fails is left to the next run's backlog.

        Args:
            own: the run at work, opened.

        Raises:
            StorageError: a file of the record is damaged.
        """
        if not self._own_tried:
            self._own_tried = True
            self._send(own, self._began_at)
            return
        with _alone(self._home) as alone:
            row = self._next() if alone else None
            if row is None:
                self._ended = True
                return
            self._tried.add(row.run_id)
            self._send_ended(row, own)

    def _next(self) -> RunRow | None:
        """The newest run that has ended and is not known to be complete in MLflow."""
        rows = (row for row in RunStore(self._home).runs() if row.status not in ("running", "simulated"))
        wanted = (row for row in rows if row.run_id not in self._tried and _server(row) == self._server)
        wanted = (row for row in wanted if not self._is_sent(row))
        return next((row for row in wanted if self._is_over(row)), None)

    def _is_sent(self, row: RunRow) -> bool:
        """Whether MLflow is known to have all of a run, since after its end."""
        sent_at = NoteStore(self._home).noted_at(row.run_id, _PLACE)
        return sent_at is not None and sent_at >= (row.ended_at or 0.0)

    def _is_over(self, row: RunRow) -> bool:
        """Whether no process sends anything of a run that has ended: not the one that did it, no new one."""
        if shown_status(row, activity_of(self._home, row, 0)) == "starting":
            return False
        if row.host == socket.gethostname():
            return not run_is_alive(row)
        return now() > (row.ended_at or 0.0) + SETTLED_S

    def _send_ended(self, row: RunRow, own: MlflowRun) -> None:
        params = flat_settings(_settings(row))
        tags = tags_of(params, row.environment)
        run = MlflowRun(own.uri, own.artifacts, row.run_id, params, tags, row.created_at)
        run.open()
        self._send(run, now())
        run.end(row.status, row.ended_at)
        NoteStore(self._home).link(row.run_id, _PLACE, own.uri)

    def _send(self, run: MlflowRun, until: float) -> None:
        """Send the iterations and evaluations that MLflow has nothing of."""
        with Records(self._home).reading(run.run_id) as connection:
            records = recorded_figures(connection, run.run_id, until)
        logged = {figure: run.logged_steps(figure) for figure in {record.figure for record in records}}
        for record in records:
            if record.iteration not in logged[record.figure]:
                run.log_metrics(record.iteration, record.figures, int(record.at * 1000))


def _settings(row: RunRow) -> dict[str, Any]:
    """As the run stored them, whatever its version."""
    settings = json.loads(row.config_json)
    return settings if isinstance(settings, dict) else {}


def _server(row: RunRow) -> str:
    tracking = _settings(row).get("tracking")
    return str(tracking.get("uri", "")) if isinstance(tracking, dict) else ""


@contextmanager
def _alone(home: Home) -> Iterator[bool]:
    """Whether no other process sends earlier runs of the home; none begins to while the context lasts."""
    descriptor = os.open(home.path / "mlflow.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
