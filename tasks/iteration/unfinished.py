"""Paid work that no record has yet, written beside the record, so that the bill of a killed run has it.

The driver replaces one small folder at most once a minute, where it waits for devices anyway. When the run
ends, or when another process finds it killed, that folder becomes discarded work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from storage.errors import StorageError
from storage.record.records import Collected
from storage.record.run_store import RunStore
from storage.record.tables import Rows, unfinished_rows

NOTE_EVERY_S = 60.0
"""Seconds between two writes: a kill loses the paid time of so many at most."""


class UnfinishedWork:
    """The paid work of a run since its last record. No method raises: a full disk is the commit's to report.

    Attributes:
        is_cut_off: True unless the run has done all its work.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._work: tuple[str, int] | None = None
        self._due_s = float("-inf")
        self._looking = threading.Lock()
        self.is_cut_off = True

    def begin(self, phase: str, number: int) -> None:
        """Count work from now on for an `iteration` or an `evaluation`."""
        self._work = phase, number

    def look(self, so_far: Callable[[], Collected]) -> None:
        """Write the work so far if the last write is a minute old; any thread may call it."""
        if time.monotonic() < self._due_s or not self._looking.acquire(blocking=False):
            return
        try:
            with suppress(StorageError):
                phase, number = self._current()
                self.note(phase, number, unfinished_rows(self._run_id, phase, number, so_far()))
            self._due_s = time.monotonic() + NOTE_EVERY_S
        finally:
            self._looking.release()

    def note(self, phase: str, number: int, rows: Rows) -> None:
        """Write the paid work of an iteration or evaluation.

        Args:
            phase, number: that `iteration` or `evaluation`.
            rows: its rows, in place of those written before.
        """
        with suppress(StorageError):
            self._store.note_unfinished(self._run_id, phase, number, rows)

    def end(self, left: Collected) -> None:
        """Count as discarded what no record will have, unless the run is finished; its devices have ended."""
        with suppress(StorageError):
            if self.is_cut_off:
                phase, number = self._current()
                self.note(phase, number, unfinished_rows(self._run_id, phase, number, left))
            self._store.settle_unfinished(self._run_id, counts=self.is_cut_off)

    def _current(self) -> tuple[str, int]:
        # Before the checkpoint is restored, the work belongs to no iteration that has a record.
        return self._work or ("iteration", (self._store.run(self._run_id).last_iteration or 0) + 1)
