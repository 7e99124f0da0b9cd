"""Where the parts of a run write what its record is made of, as it happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.record.records import Collected


class Collector:
    """Collects what a run's devices and judges have done since the record before. Threads may share it.

    A component that knows of something under way (a state, paid time, a waiting standby) registers a function
    that books it when the record is closed. `close` calls these without its own lock, as they take others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = Collected()
        self._books: list[Callable[[], None]] = []

    def book_at_close(self, book: Callable[[], None]) -> None:
        """Register what writes how far something has come, called once for each record."""
        self._books.append(book)

    @contextmanager
    def writing(self) -> Iterator[Collected]:
        """Give what is collected now, to add to it."""
        with self._lock:
            yield self._since

    def close(self) -> Collected:
        """Return what was collected since the last call."""
        for book in self._books:
            book()
        with self._lock:
            closed, self._since = self._since, Collected()
        return closed
