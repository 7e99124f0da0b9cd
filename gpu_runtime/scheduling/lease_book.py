"""The valid leases, their holders and expiries. Pure: time is an argument, in seconds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Generic

from gpu_runtime.scheduling.progress import LiveLease, Progress
from gpu_runtime.scheduling.work_items import Lease, RequestT

_SLACK = 64  # entries of ended leases that the heap may always hold


class LeaseBook(Generic[RequestT]):
    """Valid leases by number and by holder, and the order in which they expire."""

    def __init__(self) -> None:
        self._live: dict[int, LiveLease[RequestT]] = {}
        self._of: dict[str, dict[int, LiveLease[RequestT]]] = {}
        self._held: dict[str, int] = {}
        # (expiry in seconds, number), one entry a lease, possibly too early: a renewal does not
        # touch the heap, and an entry that comes up too early goes in again with the later time.
        self._expiries: list[tuple[float, int]] = []

    def grant(self, lease: Lease[RequestT], requests: Sequence[Progress[RequestT]], expires_s: float) -> None:
        """Enter a lease on requests that waited.

        Args:
            lease: with its number and holder.
            requests: their progress, in the lease's order.
            expires_s: on the scheduler's clock.
        """
        held = dict(zip(lease.requests, requests, strict=True))
        live = LiveLease(lease, held, expires_s)
        for progress in requests:
            progress.lease = live
        self._live[lease.number] = live
        self._of.setdefault(lease.holder, {})[lease.number] = live
        self._held[lease.holder] = self._held.get(lease.holder, 0) + len(held)
        heapq.heappush(self._expiries, (expires_s, lease.number))
        if len(self._expiries) > 2 * len(self._live) + _SLACK:
            # Leases that ended long before their time would fill the heap.
            self._expiries = [(live.expires_s, number) for number, live in self._live.items()]
            heapq.heapify(self._expiries)

    def held(self, worker: str) -> int:
        """Requests that a worker holds."""
        return self._held.get(worker, 0)

    def of(self, worker: str) -> list[LiveLease[RequestT]]:
        """A worker's leases, oldest first."""
        return list(self._of.get(worker, {}).values())

    def get(self, number: int) -> LiveLease[RequestT] | None:
        """The lease of a number; None when it is over."""
        return self._live.get(number)

    def renew(self, live: LiveLease[RequestT], expires_s: float) -> None:
        """Let a lease last longer, never shorter."""
        if expires_s > live.expires_s:
            live.expires_s = expires_s

    def release(self, progress: Progress[RequestT]) -> None:
        """A leased request is its holder's no more; a lease ends with its last request."""
        live = progress.lease
        assert live is not None
        del live.held[progress.item.request]
        progress.lease = None
        self._end(live, 1)

    def close(self, live: LiveLease[RequestT]) -> list[Progress[RequestT]]:
        """End a lease; returns what its holder still had."""
        left = list(live.held.values())
        live.held.clear()
        for progress in left:
            progress.lease = None
        self._end(live, len(left))
        return left

    def overdue(self, now: float) -> list[LiveLease[RequestT]]:
        """Leases that end at `now` or before, earliest first; the caller must close them."""
        ended: list[LiveLease[RequestT]] = []
        while (expiry := self.next_expiry_s) is not None and expiry <= now:
            ended.append(self._live[heapq.heappop(self._expiries)[1]])
        return ended

    @property
    def next_expiry_s(self) -> float | None:
        """When the next lease ends unless it is renewed; None without leases."""
        while self._expiries:
            expires_s, number = self._expiries[0]
            live = self._live.get(number)
            if live is None:
                heapq.heappop(self._expiries)
            elif live.expires_s > expires_s:
                heapq.heapreplace(self._expiries, (live.expires_s, number))
            else:
                return expires_s
        return None

    def _end(self, live: LiveLease[RequestT], count: int) -> None:
        number, holder = live.lease.number, live.lease.holder
        self._held[holder] -= count
        if live.held:
            return
        del self._live[number]
        leases = self._of[holder]
        del leases[number]
        # Names of workers that are gone must not pile up.
        if not leases:
            del self._of[holder], self._held[holder]
