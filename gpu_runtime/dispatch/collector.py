"""The collector of a run's record, to which its parts write data as it happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.record.records import Collected


class Collector:
    """The data on a run's devices and judges since the previous record. Thread-safe.

    A component with ongoing data (a state, paid time, a waiting standby) registers a function that adds it
    when the record is closed. `close` calls these without holding its lock, because they take others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = Collected()
        self._books: list[Callable[[], None]] = []

    def book_at_close(self, book: Callable[[], None]) -> None:
        """Register a function that adds the progress of ongoing work, called once for each record."""
        self._books.append(book)

    @contextmanager
    def writing(self) -> Iterator[Collected]:
        """Yield the current data, to add to them."""
        with self._lock:
            yield self._since

    def note(self, *notes: str) -> None:
        """Add notes to the user, as text."""
        with self.writing() as since:
            since.notes += notes

    def close(self) -> Collected:
        """Return what was collected since the last call."""
        for book in self._books:
            book()
        with self._lock:
            closed, self._since = self._since, Collected()
        return closed
