"""A queue that workers pull from when they are free. Pure: no clock, no Ray, no torch.

A worker takes a lease on some requests, delivers their results, or is lost, in which case its
leases go back to the front of the queue. A request is accepted once: what arrives a second time
is dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT", bound=Hashable)


@dataclass(frozen=True)
class Lease(Generic[RequestT]):
    """A worker's right to work on some requests."""

    number: int
    holder: str
    requests: tuple[RequestT, ...]


class PullQueue(Generic[RequestT]):
    """Requests of one phase, handed out in batches.

    Args:
        requests: distinct requests, in the order in which they should be served.
        batch_size: most requests in one lease.
        alike: what all requests of a lease must have in common; nothing by default.

    Raises:
        ValueError: if a request occurs twice.
    """

    def __init__(
        self,
        requests: Iterable[RequestT],
        batch_size: int,
        alike: Callable[[RequestT], Hashable] = lambda request: None,
    ) -> None:
        self._waiting: deque[RequestT] = deque()
        self._open: set[RequestT] = set()
        self._batch_size = batch_size
        self._alike = alike
        self._leases: dict[int, Lease[RequestT]] = {}
        self._next_number = 0
        self.duplicates = 0
        self.returned = 0
        self.add(requests)

    def add(self, requests: Iterable[RequestT]) -> None:
        """Further requests, behind those that wait.

        Raises:
            ValueError: if a request occurs twice.
        """
        for request in requests:
            if request in self._open:
                raise ValueError("a request occurs twice in the queue; each has one identity")
            self._open.add(request)
            self._waiting.append(request)

    @property
    def waiting(self) -> int:
        """Requests that nobody has leased."""
        return len(self._waiting)

    @property
    def following(self) -> RequestT | None:
        """The request that the next lease begins with; None when nobody waits."""
        return self._waiting[0] if self._waiting else None

    @property
    def done(self) -> bool:
        """Every request has been delivered."""
        return not self._open

    def pull(self, holder: str) -> Lease[RequestT] | None:
        """Lease the next requests to `holder`; None when nobody waits."""
        taken: list[RequestT] = []
        while self._waiting and len(taken) < self._batch_size:
            if taken and self._alike(self._waiting[0]) != self._alike(taken[0]):
                break
            request = self._waiting.popleft()
            # A late delivery may have served a request that had gone back to the queue.
            if request in self._open:
                taken.append(request)
        if not taken:
            return None
        lease = Lease(self._next_number, holder, tuple(taken))
        self._next_number += 1
        self._leases[lease.number] = lease
        return lease

    def deliver(self, lease: Lease[RequestT]) -> list[RequestT]:
        """Close a lease; returns the requests accepted, without those delivered before."""
        self._leases.pop(lease.number, None)
        accepted = [request for request in lease.requests if request in self._open]
        self.duplicates += len(lease.requests) - len(accepted)
        self._open.difference_update(accepted)
        return accepted

    def give_back(self, holder: str) -> int:
        """Return all that `holder` has leased to the front of the queue; how many requests."""
        count = 0
        for lease in [lease for lease in self._leases.values() if lease.holder == holder]:
            del self._leases[lease.number]
            back = [request for request in lease.requests if request in self._open]
            self._waiting.extendleft(reversed(back))
            count += len(back)
        self.returned += count
        return count
