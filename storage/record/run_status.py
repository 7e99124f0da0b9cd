"""How a run stands: what was recorded of it, what its process does now, and what its log says."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from storage.clock import process_is_alive
from storage.home import Home
from storage.run_log import START, Activity, read_activity

if TYPE_CHECKING:  # commands that refuse a setting do not wait for its import
    import pandas as pd

LIVE = ("starting", "running")
"""Statuses of a run of which more will be recorded."""


class StatusRow(Protocol):
    """What was recorded of how a run stands: a `RunRow`, or a `RecordedStatus`."""

    @property
    def run_id(self) -> str:
        """Its identifier."""
        ...

    @property
    def status(self) -> str:
        """The recorded status."""
        ...

    @property
    def ended_at(self) -> float | None:
        """Unix seconds; None while it goes on."""
        ...

    @property
    def host(self) -> str:
        """The machine of the process that does the work, or did it last."""
        ...

    @property
    def pid(self) -> int:
        """That process."""
        ...

    @property
    def process_started_at(self) -> float | None:
        """When it began, in seconds since the machine's boot."""
        ...


class RecordedStatus(NamedTuple):
    """The same, of a row of a table of runs."""

    run_id: str
    status: str
    ended_at: float | None
    host: str
    pid: int
    process_started_at: float | None


def run_is_alive(row: StatusRow) -> bool:
    """Whether the run's very process still runs on this machine.

    A later process that was given the same pid does not count; a run of another machine cannot be
    seen from here and passes for alive.
    """
    if row.host != socket.gethostname():
        return True
    return process_is_alive(row.pid, row.process_started_at)


def shown_status(row: StatusRow, activity: Activity) -> str:
    """The recorded status, but for a run whose process is gone (`interrupted`) and one that is being started.

    Args:
        row: what was recorded.
        activity: what the run's log says.
    """
    started_at = activity.phases.get(START)
    if row.status == "running" and run_is_alive(row):
        return "running" if started_at is None else "starting"
    if started_at is not None and activity.is_alive and started_at > (row.ended_at or 0.0):
        return "starting"  # it is being resumed, by a process that has not entered itself yet
    return "interrupted" if row.status == "running" else row.status


def activity_of(home: Home, row: StatusRow, messages: int = 100) -> Activity:
    """What the log says of a run; nothing for one that has ended and that no process has begun to resume.

    Args:
        home: where the log is.
        row: what was recorded.
        messages: how many of the latest.
    """
    if row.status == "finished":
        return Activity()
    if row.status != "running":
        try:
            written_at = home.run_log(row.run_id).stat().st_mtime
        except OSError:
            return Activity()
        if written_at <= (row.ended_at or 0.0):
            return Activity()
    return read_activity(home, row.run_id, messages)


def shown_statuses(home: Home, table: pd.DataFrame) -> list[str]:
    """How each run of a table stands.

    Args:
        home: where their logs are.
        table: columns run_id, status, ended_at, host, pid, process_started_at; NaN where there is none.
    """
    found = []
    for cells in zip(*(table[name].tolist() for name in RecordedStatus._fields), strict=True):
        known: list[Any] = [None if cell != cell else cell for cell in cells]
        row = RecordedStatus(*known)
        found.append(shown_status(row, activity_of(home, row, 0)))
    return found
