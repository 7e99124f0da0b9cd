"""Pruning of the Prefect server's database: old task runs, events and log lines are deleted.

An iteration leaves five task runs with their states, 15 events and 45 rows about their subjects: 100 kB. The
server itself deletes events by age, and task runs only together with their flow run, so that a long run's
database would grow without bound. A run's results are in its folder; Prefect's database is for watching.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 60.0
"""Seconds between prunings of the database."""

_BATCH = 500
"""Rows deleted in one transaction, for which the server has to wait."""

_WAIT_S = 60.0
_COMPACTED_BYTES = 50_000_000
"""Bytes of free pages above which the file is rewritten when its server starts."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """Numbers of the newest rows to keep; unfinished task runs always stay.

    Attributes:
        task_runs: task runs with their states, of 800 iterations.
        events: events with their subjects, of the last 200 iterations.
        logs: log lines.
    """

    task_runs: int = 4_000
    events: int = 3_000
    logs: int = 10_000


def prune(database: Path, kept: Kept | None = None) -> int:
    """Delete all but the newest rows, a few at a time; the file does not shrink.

    Args:
        database: a Prefect server's SQLite file; the server may be using it.
        kept: rows to keep; 40 MB of them by default.

    Returns:
        Number of deleted task runs, events and log lines.

    Raises:
        sqlite3.Error: the file stayed locked, or is not such a database.
    """
    kept = kept or Kept()
    with closing(_connected(database)) as connection:
        return (
            _delete_oldest(connection, "task_run", "end_time", kept.task_runs)
            + _delete_oldest(connection, "events", "occurred", kept.events)
            + _delete_oldest(connection, "log", "timestamp", kept.logs)
        )


def compact(database: Path) -> None:
    """Rewrite a file of mostly free pages, such as one that an earlier version let grow.

    Raises:
        sqlite3.Error: the file stayed locked, or is not a database.
    """
    if not database.exists():
        return
    with closing(_connected(database)) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        if free * size > _COMPACTED_BYTES and 2 * free > pages:
            connection.execute("VACUUM")


def keep_small(database: Path) -> None:
    """Compact a server's database before any process uses it, then prune it while this process lives."""
    try:
        compact(database)
    except sqlite3.Error as error:
        _logger.warning("%s could not be compacted: %s", database, error)
    threading.Thread(target=_prune_for_ever, args=(database,), name="pruning", daemon=True).start()


def _prune_for_ever(database: Path) -> None:
    pause = threading.Event()
    while not pause.wait(LOOK_S):
        try:
            prune(database)
        except sqlite3.Error as error:
            _logger.warning("%s could not be pruned: %s; trying again in %g s", database, error, LOOK_S)


def _connected(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_S, isolation_level=None
    )
    connection.execute("PRAGMA foreign_keys = ON")  # the states of a task run are deleted with it
    return connection


def _delete_oldest(connection: sqlite3.Connection, table: str, time: str, kept: int) -> int:
    """Delete all rows of a table but the newest `kept`; rows without a time stay."""
    newest = f"SELECT {time} FROM {table} WHERE {time} IS NOT NULL ORDER BY {time} DESC LIMIT 1 OFFSET ?"
    last = connection.execute(newest, [kept]).fetchone()
    deleted, found = 0, last is not None
    while found:
        connection.execute("BEGIN IMMEDIATE")
        chosen = f"SELECT id FROM {table} WHERE {time} <= ? ORDER BY {time} LIMIT {_BATCH}"
        if table == "events":  # SQLite does not know otherwise that these belong to an event
            connection.execute(f"DELETE FROM event_resources WHERE event_id IN ({chosen})", last)
        rows = connection.execute(f"DELETE FROM {table} WHERE id IN ({chosen})", last).rowcount
        connection.execute("COMMIT")
        deleted, found = deleted + rows, rows > 0
    return deleted
