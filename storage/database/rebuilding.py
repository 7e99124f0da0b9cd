"""Makes the database's rows again after it was damaged or lost.

It begins from the newest sound backup, or from nothing, and adds what came later: from each run's journal,
then from the records in its checkpoints, then the curves that MLflow holds. The new file is put in place of
the damaged one when it is complete; the damaged one stays beside it under another name. A sound database that
lacks runs gets those runs, and is otherwise left alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage.database.backups import newest_backup
from storage.database.database import Database
from storage.database.results import run_result
from storage.database.run_rebuilding import restore_run
from storage.database.run_status import run_is_alive
from storage.database.run_store import RunRow, RunStore, run_rows
from storage.errors import ConfigurationError, DatabaseDamagedError, StorageError
from storage.home import Home


@dataclass
class Rebuilt:
    """What a rebuild did.

    Attributes:
        runs: the runs whose rows it wrote, with their number of iterations now.
        kept_at: where the damaged database lies now; None where there was none.
        backup_made_at: when the backup was made that it began from, in Unix seconds; None without one.
        losses: what could not be recovered, a line each.
    """

    runs: dict[str, int] = field(default_factory=dict)
    kept_at: Path | None = None
    backup_made_at: float | None = None
    losses: list[str] = field(default_factory=list)


def rebuild(home: Home, only: str | None = None, take_over: bool = False) -> Rebuilt:
    """Make again the rows of the runs that the database does not know or cannot read.

    Args:
        home: whose database.
        only: the run that is wanted, where the database is sound; None takes all that it lacks.
        take_over: count runs that go on on another machine as interrupted.

    Raises:
        ConfigurationError: a run of which rows are to be written is going on, or another rebuild is.
        StorageError: the database stayed locked, is of a later version, or the disk refused; it is as before.
    """
    database = Database(home.database)
    with _alone(home):
        try:
            database.check()
            damaged = False
        except DatabaseDamagedError:
            damaged = True
        result = Rebuilt()
        try:
            if damaged or not home.database.exists():
                _replace(home, result, take_over)
            else:
                known = {row.run_id for row in RunStore(home).runs()}
                wanted = home.run_folders() if only is None else [only]
                lacking = {run_id: 0 for run_id in wanted if run_id not in known}
                if lacking:
                    _fill(home, database, lacking, result, take_over)
        except OSError as error:
            raise StorageError(
                f"cannot rebuild {home.database}: {error.strerror or error}; free disk space or fix the "
                "folder's rights, then try again: nothing was changed"
            ) from error
        finally:
            _remove(_rebuilding(home))
    _summarise(database, result)
    RunStore(home).reconcile()
    return result


def _summarise(database: Database, result: Rebuilt) -> None:
    """Give finished runs that have no journal, and thus no summary, the one that their rows come to."""
    with database.reading() as connection:
        rows = run_rows(connection, "WHERE status = 'finished' AND summary = '{}'", [])
    summaries = {row.run_id: run_result(database, row.run_id) for row in rows if row.run_id in result.runs}
    if summaries:
        with database.writing() as connection:
            for run_id, summary in summaries.items():
                connection.execute(
                    "UPDATE runs SET summary = ? WHERE run_id = ?", [json.dumps(summary), run_id]
                )


def _replace(home: Home, result: Rebuilt, take_over: bool) -> None:
    """Build a new file beside the damaged one, then put it in its place."""
    path = _rebuilding(home)
    _remove(path)
    journals = _begin(home, path, result)
    database = Database(path)
    fresh = {run_id: journals.get(run_id, 0) for run_id in home.run_folders()}
    _fill(home, database, fresh, result, take_over)
    database.check()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    result.kept_at = _put_in_place(path, home.database)


def _begin(home: Home, path: Path, result: Rebuilt) -> dict[str, int]:
    """Lay the newest sound backup at `path`; how far it has each journal, in bytes."""
    elsewhere = "what only the database held (separate evaluations, reproductions)"
    try:
        backup = newest_backup(home)
    except StorageError as error:
        result.losses.append(str(error))
        backup = None
    if backup is None:
        result.losses.append(f"{elsewhere}: there is no backup of it")
        return {}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(backup.content)
    result.backup_made_at = backup.made_at
    made_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(backup.made_at))
    result.losses.append(f"{elsewhere}, if it came after the backup of {made_at}")
    return backup.journals


def _fill(home: Home, database: Database, journals: dict[str, int], result: Rebuilt, take_over: bool) -> None:
    """Write the rows of runs, from each journal's given byte on, in one transaction."""
    in_place = database.path == home.database
    with database.writing() as connection:
        for run_id, after_bytes in journals.items():
            iterations, losses = restore_run(connection, home, run_id, after_bytes)
            if iterations is not None:
                result.runs[run_id] = iterations
            result.losses += losses
        for row in run_rows(connection, "WHERE status = 'running'", []):
            if row.run_id in journals or not in_place:  # other runs of a sound database may go on
                _refuse_live(row, home, take_over)


def _refuse_live(row: RunRow, home: Home, take_over: bool) -> None:
    elsewhere = row.host != socket.gethostname()
    if not run_is_alive(row) or (elsewhere and take_over):
        return
    message = (
        f"run {row.run_id!r} is going on in process {row.pid} of {row.host}, and {home.database} cannot be "
        "rebuilt beside it; wait for it or end that process first"
    )
    if elsewhere:
        message += ", or, if that machine is gone or was renamed, add `--take-over`"
    raise ConfigurationError(message)


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Keep out other rebuilds of the home while the context lasts."""
    path = home.path / "rebuild.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another process rebuilds {home.database} already; wait for it and try again"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _put_in_place(path: Path, final: Path) -> Path | None:
    """Give a damaged file, and its log, another name, and its name to the new one; the damaged one's name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{final.name}.damaged-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
    aside = next(final.with_name(name) for name in names if not os.path.lexists(final.with_name(name)))
    moved: list[tuple[Path, Path]] = []
    try:
        for suffix in (".wal", ""):  # left where it is, the log would be read into the new file
            old, kept = final.with_name(final.name + suffix), aside.with_name(aside.name + suffix)
            if os.path.lexists(old):
                old.rename(kept)
                moved.append((old, kept))
        os.replace(path, final)
    except OSError:
        for old, kept in moved:
            kept.rename(old)
        raise
    return aside if os.path.lexists(aside) else None


def _rebuilding(home: Home) -> Path:
    return home.database.with_name(f".rebuilding-{home.database.name}")


def _remove(path: Path) -> None:
    for leftover in (path, path.with_name(f"{path.name}.wal")):
        leftover.unlink(missing_ok=True)
