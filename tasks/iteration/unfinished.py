"""Paid work that no record has yet, written beside the record, so that the bill of a killed run has it.

The driver replaces one small folder at most once a minute, where it waits for devices anyway. When the run
ends, or when another process finds it killed, that folder becomes discarded work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from storage.errors import StorageError, TakenOverError
from storage.record.records import Collected
from storage.record.run_store import RunStore
from storage.record.tables import Rows, unfinished_rows

NOTE_EVERY_S = 60.0
"""Seconds between two writes: a kill loses the paid time of so many at most."""


class UnfinishedWork:
    """The paid work of a run since its last record. A full disk raises nothing: the commit reports it.

    Methods raise TakenOverError if another process drives the run by now.

    Attributes:
        is_cut_off: True unless the run has done all its work.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._work: tuple[str, int] | None = None
        self._written: tuple[str, int] | None = None  # the name under which the work so far was last written
        self._committing = ""
        self._due_s = float("-inf")
        self._looking, self._has_ended = threading.Lock(), False
        self.is_cut_off = True

    def begin(self, phase: str, number: int) -> None:
        """Count the work since the last `collected` for an `iteration` or an `evaluation`."""
        self._work = phase, number

    def collected(self) -> None:
        """Leave the work so far, as it was last written, to a record that follows."""
        with self._looking:
            self._written = None

    def look(self, so_far: Callable[[], Collected]) -> None:
        """Write the work so far if the last write is a minute old; any thread may call it."""
        if time.monotonic() < self._due_s or not self._looking.acquire(blocking=False):
            return
        try:
            if not self._has_ended:
                self._write(so_far)
            self._due_s = time.monotonic() + NOTE_EVERY_S
        finally:
            self._looking.release()

    @contextmanager
    def committing(self, phase: str, number: int, rows: Rows) -> Iterator[None]:
        """Keep the paid work of rows while they are committed, which may take minutes.

        Args:
            phase, number: that `iteration` or `evaluation`.
            rows: all its rows.
        """
        with _quiet():
            self._store.note_unfinished(self._run_id, phase, number, rows)
        self._committing = f"{phase}-{number:06d}"
        try:
            yield
        finally:
            self._committing = ""

    def end(self, left: Collected) -> None:
        """Count as discarded what no record will have, unless the run is finished; its devices have ended.

        Work that is being committed is left alone: the next life of the run finds out what became of it.
        """
        with self._looking, suppress(StorageError):
            self._has_ended = True
            if self.is_cut_off:
                self._write(lambda: left)
            self._store.settle_unfinished(self._run_id, self.is_cut_off, self._committing)

    def _write(self, so_far: Callable[[], Collected]) -> None:
        """Write work; the caller holds the lock."""
        with _quiet():
            # Before the checkpoint is restored, the work belongs to no iteration that has a record.
            work = self._work or ("iteration", (self._store.run(self._run_id).last_iteration or 0) + 1)
            before = self._written if self._written != work else None
            self._store.note_unfinished(
                self._run_id, *work, unfinished_rows(self._run_id, *work, so_far()), before
            )
            self._written = work


@contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except TakenOverError:
        raise
    except StorageError:
        pass
