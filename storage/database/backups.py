"""Copies of the database, made at each run's end: `spotlight rebuild` begins from the newest sound one.

They are kept as checkpoints are: written under another name, forced to disk, renamed, with a digest.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from storage.checkpoints import CheckpointStore
from storage.clock import now
from storage.database.database import LOCK_WAIT_S, Database
from storage.database.journal import Journal
from storage.errors import CheckpointError, StorageError
from storage.home import Home

KEPT_BACKUPS = 3

_FILE = "spotlight.duckdb"


@dataclass(frozen=True)
class Backup:
    """A copy of the database.

    Attributes:
        content: the file's bytes.
        made_at: when it was made, in Unix seconds.
        journals: length of each run's journal then, in bytes: what comes later is not in the copy.
    """

    content: bytes
    made_at: float
    journals: dict[str, int]


def back_up(home: Home, wait_s: float = LOCK_WAIT_S) -> None:
    """Keep a copy of the database, after reading all of it; the oldest copies go.

    Raises:
        DatabaseDamagedError: the database is damaged; the copies are left as they are.
        StorageError: it stayed locked, or the disk refused.
    """
    store = _store(home)
    try:
        home.backups.mkdir(mode=0o700, exist_ok=True)
        with Database(home.database, wait_s).held() as path, path.open("rb") as file:
            journals = {run_id: Journal(home.journal(run_id)).size_bytes for run_id in home.run_folders()}
            record = {"journals": journals, "made_at": now()}
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
                store.save(1 + max(store.iterations(), default=0), {_FILE: view}, record, {})
    except (CheckpointError, OSError) as error:
        reason = error.__cause__ if isinstance(error, CheckpointError) else error
        raise StorageError(f"the database has no new backup: {reason}") from error


def newest_backup(home: Home) -> Backup | None:
    """The newest sound copy; None where there is none.

    Raises:
        StorageError: there are some, and every one is damaged.
    """
    try:
        found = _store(home).load_latest()
    except CheckpointError as error:
        raise StorageError(f"every backup in {home.backups} is damaged") from error
    if found is None:
        return None
    return Backup(found.blobs[_FILE], found.record["made_at"], found.record["journals"])


def _store(home: Home) -> CheckpointStore:
    return CheckpointStore(home.backups, KEPT_BACKUPS)
