"""Where a reader stopped in a run's record: a small file in the run's folder, and a lock beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from storage.errors import StorageError
from storage.record.run_folder import read_json, write_json


@dataclass
class Position:
    """The place up to which a reader has taken a run.

    Attributes:
        to: the place that it took it to.
        moment: the last iteration times two, plus one where its evaluation was taken too; -1 for nothing.
        at: when that ended, in Unix seconds.
        events: how many events.
        ended: the status that the run ended with; empty where its end was not taken.
    """

    to: str
    moment: int = -1
    at: float = 0.0
    events: int = 0
    ended: str = ""

    @classmethod
    def read(cls, file: Path, to: str) -> Position:
        """Return what a file holds; the beginning where it is missing, damaged or of another place."""
        try:
            found = cls(**read_json(file))
        except (StorageError, TypeError):
            return cls(to)
        return found if found.to == to else cls(to)

    def write(self, file: Path) -> None:
        """Replace the file."""
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(file, asdict(self))


def position_file(run: Path, name: str) -> Path:
    """Return the file of a reader's position in a run's folder, by its name in `tracking.to`."""
    return run / "readers" / f"{quote(name, safe='')}.json"


@contextmanager
def locked(file: Path, wait: bool) -> Iterator[bool]:
    """Hold a reader's lock on a run, so that no other process sends it too.

    Args:
        file: of the position.
        wait: for a process that has the lock; else yield False where one has it.
    """
    file.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            try:
                yield True
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the file open, too
    finally:
        os.close(descriptor)
