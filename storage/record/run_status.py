"""A run's log, in its events.jsonl, and its status according to its record, process and log.

Events are what a person should see beside the figures; the log lines between them tell what the run is doing,
even before it has a run.json. They have `log` in place of an event's `kind`.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storage.clock import may_be_alive, now, process_is_alive, process_start_s
from storage.home import Home
from storage.record.run_folder import EVENTS_FILE, RunFolder

if TYPE_CHECKING:  # a command that refuses a setting does not wait for its import
    import pandas as pd

    from storage.record.run_store import RunRow, RunStore

LIVE = ("starting", "running")
"""The statuses of a run that will record more."""

START = "start"
"""The phase before the first one of an iteration: the server, the devices, the model."""

_TAIL_BYTES = 65_536
_TELL_BY_EVENTS = "storage.readers"
"""The loggers whose warnings are already events of the run."""


class RunLog:
    """The writer of a run's log. No method raises: a full disk must not end a run over a lost line.

    Args:
        driver: store by which this process drives the run, or will: nothing is written once another process
            has taken the run over.
    """

    def __init__(self, home: Home, run_id: str, driver: RunStore | None = None) -> None:
        self._home, self._run_id, self._driver = home, run_id, driver
        self._folder = RunFolder(home.run(run_id))

    def starting(self) -> None:
        """Record that this process now works on the run; earlier phases are over."""
        host, pid, began_s = this_process()
        self._append("started", host=host, pid=pid, process_started_at=began_s)
        self._append("begin", message=START)

    @contextmanager
    def of_start(self) -> Iterator[None]:
        """Show the run as starting, seconds before it has a row; a start that is refused leaves no folder."""
        self.starting()
        try:
            yield
        finally:
            activity = read_activity(self._home, self._run_id, 0)
            if activity.is_starting and activity.process == this_process():
                self.ready()  # refused or failed: this process may live on
            if not self._folder.exists:
                with suppress(OSError):  # not empty: a host with workers
                    (self._folder.path / EVENTS_FILE).unlink(missing_ok=True)
                    self._folder.path.rmdir()

    def ready(self) -> None:
        """Record that everything that a run needs has started."""
        self._append("end", message=START)

    def note(self, message: str) -> None:
        """Record a message on one line."""
        self._append("note", message=" ".join(message.split()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record a phase, such as `rollout`; it ends with the context, however that ends."""
        self._append("begin", message=name)
        try:
            yield
        finally:
            self._append("end", message=name)

    @contextmanager
    def with_warnings(self) -> Iterator[None]:
        """Record warnings and errors of all libraries too, while the context lasts."""
        handler = _Warnings(self)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)

    def _append(self, log: str, **values: Any) -> None:
        # Without the folder's lock, which this thread may already hold when a library logs something.
        if self._driver is not None and self._driver.folder(self._run_id).is_taken_over():
            return
        with suppress(OSError):
            self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.append({"log": log, "happened_at": now(), **values})


class _Warnings(logging.Handler):
    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_TELL_BY_EVENTS):
            return
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - it formats objects of any library, whose __str__ may raise anything
            text = str(record.msg)
        self._log.note(f"{record.levelname.lower()} of {record.name}: {text}")


@dataclass(frozen=True)
class Message:
    """A line of a log for a person: time (Unix seconds), message, and the kind of an event."""

    at: float
    text: str
    kind: str = ""


Process = tuple[str, int, float]
"""A process: its host, its pid, and its start in seconds since the machine's boot."""


def this_process() -> Process:
    """Return the calling process."""
    return socket.gethostname(), os.getpid(), process_start_s(os.getpid())


@dataclass
class Activity:
    """A run's activity, from its log, read line by line.

    Attributes:
        process: process that started last; None if unknown.
        phases: phases that have begun and not ended, with their start (Unix seconds).
        messages: latest messages and events, in order, from `read_activity`.
    """

    process: Process | None = None
    phases: dict[str, float] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    @property
    def is_alive(self) -> bool:
        """True if that process still runs on this machine."""
        return self.process is not None and process_is_alive(*self.process[1:])

    @property
    def is_starting(self) -> bool:
        """True until the run's first phase has ended."""
        return START in self.phases

    def take(self, line: Any) -> Message | None:
        """Take the next line (a JSON value); return its message, or None if a person needs none."""
        match line:
            case {"log": "started", "host": str(host), "pid": int(pid), "process_started_at": float(began_s)}:
                self.process, self.phases = (host, pid, began_s), {}
            case {"log": "begin", "happened_at": float(at), "message": str(text)}:
                self.phases[text] = at
                return Message(at, f"{text} begins")
            case {"log": "end", "happened_at": float(at), "message": str(text)}:
                began_at = self.phases.pop(text, None)
                took = "" if began_at is None else f" after {at - began_at:.1f} s"
                return Message(at, f"{text} ends{took}")
            case {"kind": str(kind), "happened_at": float(at), "message": str(text)}:
                return Message(at, text, kind)
            case {"happened_at": float(at), "message": str(text)}:
                return Message(at, text)
        return None  # torn, or not ours


def read_activity(home: Home, run_id: str, messages: int = 100) -> Activity:
    """Read the end of a run's log, with its latest messages (at most so many); empty without a log."""
    activity, lines = Activity(), list[Any]()
    with suppress(OSError):
        lines, _ = RunFolder(home.run(run_id)).lines(-_TAIL_BYTES)
    found = [message for line in lines if (message := activity.take(line)) is not None]
    activity.messages = tuple(found[-messages:] if messages else ())
    return activity


def shown_status(row: RunRow, activity: Activity) -> str:
    """Return the recorded status, unless it is `interrupted` because the process is gone, or `starting`."""
    if row.status == "running" and may_be_alive(row.host, row.pid, row.process_started_at):
        return "starting" if activity.is_starting else "running"
    if activity.is_alive and activity.phases.get(START, 0.0) > (row.ended_at or 0.0):
        return "starting"  # resumed by a process that has not recorded itself yet
    return "interrupted" if row.status == "running" else row.status


def activity_of(home: Home, row: RunRow, messages: int = 100) -> Activity:
    """Read the log of a run; empty for one that has ended and that no process has begun to resume."""
    if row.status == "running":
        return read_activity(home, row.run_id, messages)
    try:
        written_at = (home.run(row.run_id) / EVENTS_FILE).stat().st_mtime
    except OSError:
        return Activity()
    if row.status == "finished" or written_at <= (row.ended_at or 0.0):
        return Activity()
    found = read_activity(home, row.run_id, messages)
    return found if found.is_starting else Activity()


def shown_statuses(home: Home, table: pd.DataFrame) -> list[str]:
    """Return the status to show for each run of a table.

    Args:
        table: frame with the columns run_id, status, ended_at, host, pid and process_started_at, at least;
            NaN for missing values.
    """
    columns = ["run_id", "status", "ended_at", "host", "pid", "process_started_at"]
    known = table[columns].astype(object)
    rows: Any = known.where(known.notna(), None).itertuples(index=False)
    return [shown_status(row, activity_of(home, row, 0)) for row in rows]
