"""Unfinished requests: those that wait, with their order, and those that valid leases hold.

No clock, no Ray, no torch: time is an argument, in seconds. Invariants:

- An open request waits in one lane, or is held by one valid lease; it and its lease point at each other.
- A lane holds requests that can be advanced in one batch: of one kind, version, number of denoising steps and
  committed step, in the order in which they came.
- The cost of a change does not depend on how many requests wait; choosing a lane costs the logarithm of the
  number of different committed steps, by a heap.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias

from gpu_runtime.scheduling.requests import PRIORITIES, Lease, RequestKind, RequestT, WorkItem

_SLACK = 64  # entries of ended leases that the heap may always hold


@dataclass(slots=True, eq=False)
class Progress(Generic[RequestT]):
    """An unfinished request and its progress.

    Attributes:
        first_lease: number of the first lease that can hold it; lower numbers belong to an earlier request
            of the same identity.
        step: committed denoising steps.
        state: reference to the state after them.
        lease: lease that holds it; None while it waits.
    """

    item: WorkItem[RequestT]
    first_lease: int
    step: int = 0
    state: object = None
    lease: LiveLease[RequestT] | None = None


@dataclass(slots=True, eq=False)
class LiveLease(Generic[RequestT]):
    """A valid lease.

    Attributes:
        held: requests of it that its holder still has; never empty.
        expires_s: time at which it ends unless it is renewed.
    """

    lease: Lease[RequestT]
    held: dict[RequestT, Progress[RequestT]]
    expires_s: float


class LeaseBook(Generic[RequestT]):
    """The valid leases by number (`live`) and by holder, and the order in which they expire.

    `held` counts the requests that each worker holds; a worker that holds none is missing.
    """

    def __init__(self) -> None:
        self.live: dict[int, LiveLease[RequestT]] = {}
        self._of: dict[str, dict[int, LiveLease[RequestT]]] = {}
        self.held: dict[str, int] = {}
        # (expiry in seconds, number), one entry a lease, possibly too early: a renewal does not
        # touch the heap, and an entry that comes up too early goes in again with the later time.
        self._expiries: list[tuple[float, int]] = []

    def grant(self, lease: Lease[RequestT], requests: Sequence[Progress[RequestT]], expires_s: float) -> None:
        """Enter a lease on requests that waited, in the lease's order.

        Args:
            lease: lease with its number and holder.
            requests: progress of its requests, in the lease's order.
            expires_s: time of its expiry on the scheduler's clock.
        """
        held = dict(zip(lease.requests, requests, strict=True))
        live = LiveLease(lease, held, expires_s)
        for progress in requests:
            progress.lease = live
        self.live[lease.number] = live
        self._of.setdefault(lease.holder, {})[lease.number] = live
        self.held[lease.holder] = self.held.get(lease.holder, 0) + len(held)
        heapq.heappush(self._expiries, (expires_s, lease.number))
        if len(self._expiries) > 2 * len(self.live) + _SLACK:
            # Leases that ended long before their time would fill the heap.
            self._expiries = [(live.expires_s, number) for number, live in self.live.items()]
            heapq.heapify(self._expiries)

    def of(self, worker: str) -> list[LiveLease[RequestT]]:
        """Return a worker's leases, oldest first."""
        return list(self._of.get(worker, {}).values())

    def renew(self, live: LiveLease[RequestT], expires_s: float) -> None:
        """Extend a lease; it is never shortened."""
        if expires_s > live.expires_s:
            live.expires_s = expires_s

    def release(self, progress: Progress[RequestT]) -> None:
        """Take a leased request from its holder; a lease ends with its last request."""
        live = progress.lease
        assert live is not None
        del live.held[progress.item.request]
        progress.lease = None
        self._end(live, 1)

    def close(self, live: LiveLease[RequestT]) -> list[Progress[RequestT]]:
        """End a lease, and return the requests that its holder still had."""
        left = list(live.held.values())
        live.held.clear()
        for progress in left:
            progress.lease = None
        self._end(live, len(left))
        return left

    def overdue(self, now: float) -> list[LiveLease[RequestT]]:
        """Return leases that end at `now` or before, earliest first; the caller must close them."""
        ended: list[LiveLease[RequestT]] = []
        while (expiry := self.next_expiry_s) is not None and expiry <= now:
            ended.append(self.live[heapq.heappop(self._expiries)[1]])
        return ended

    @property
    def next_expiry_s(self) -> float | None:
        """Time at which the next lease ends unless it is renewed; None without leases."""
        while self._expiries:
            expires_s, number = self._expiries[0]
            live = self.live.get(number)
            if live is None:
                heapq.heappop(self._expiries)
            elif live.expires_s > expires_s:
                heapq.heapreplace(self._expiries, (live.expires_s, number))
            else:
                return expires_s
        return None

    def _end(self, live: LiveLease[RequestT], count: int) -> None:
        number, holder = live.lease.number, live.lease.holder
        self.held[holder] -= count
        if live.held:
            return
        del self.live[number]
        leases = self._of[holder]
        del leases[number]
        # Names of workers that are gone must not accumulate.
        if not leases:
            del self._of[holder], self.held[holder]


_Key = tuple[int, int]  # all denoising steps, committed ones

# Ordered: both ends, and removal from the middle, in constant time.
_Lane: TypeAlias = OrderedDict[Progress[RequestT], None]


class _VersionQueue(Generic[RequestT]):
    """The lanes of one kind and version; a lane exists while something waits in it."""

    def __init__(self) -> None:
        self.lanes: dict[_Key, _Lane[RequestT]] = {}
        self.served = 0
        self._fresh: OrderedDict[_Key, None] = OrderedDict()
        # (minus committed steps, serial, all steps, lane): the furthest first. Lanes that have run
        # empty meanwhile are thrown away when they come up.
        self._begun: list[tuple[int, int, int, _Lane[RequestT]]] = []
        self._serial = 0

    def add(self, progress: Progress[RequestT], first: bool) -> None:
        key = (progress.item.steps, progress.step)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = OrderedDict()
            if progress.step:
                self._serial += 1
                heapq.heappush(self._begun, (-progress.step, self._serial, progress.item.steps, lane))
            else:
                self._fresh[key] = None
        lane[progress] = None
        if first:
            lane.move_to_end(progress, last=False)

    def remove(self, progress: Progress[RequestT]) -> None:
        key = (progress.item.steps, progress.step)
        del self.lanes[key][progress]
        self._forget_if_empty(key)

    @property
    def furthest(self) -> int:
        """Committed steps of the next request."""
        while self._begun and not self._begun[0][3]:
            heapq.heappop(self._begun)
        return -self._begun[0][0] if self._begun else 0

    @property
    def first(self) -> Progress[RequestT]:
        """First request that `take` returns."""
        return next(iter(self.lanes[self._next]))

    def take(self, count: int) -> list[Progress[RequestT]]:
        key = self._next
        lane = self.lanes[key]
        taken = [lane.popitem(last=False)[0] for _ in range(min(count, len(lane)))]
        self._forget_if_empty(key)
        return taken

    @property
    def _next(self) -> _Key:
        """Key of the lane that is served next."""
        step = self.furthest
        return (self._begun[0][2], step) if step else next(iter(self._fresh))

    def _forget_if_empty(self, key: _Key) -> None:
        if not self.lanes[key]:
            del self.lanes[key]
            self._fresh.pop(key, None)


class WaitingRequests(Generic[RequestT]):
    """The waiting requests, in the order in which workers get them.

    Rollout and evaluation come before exploration. Among equals, requests that continue from a commit come
    first, the furthest one leading; then kinds take turns.
    """

    def __init__(self) -> None:
        self.count = dict.fromkeys(RequestKind, 0)
        self._queues: dict[tuple[RequestKind, Hashable], _VersionQueue[RequestT]] = {}
        self._takes = 0

    def add(self, progress: Progress[RequestT], first: bool = False) -> None:
        """Let a request wait in its lane: as the `first` one if it has already had its turn."""
        item = progress.item
        queue = self._queues.get((item.kind, item.version))
        if queue is None:
            queue = self._queues[item.kind, item.version] = _VersionQueue()
        queue.add(progress, first)
        self.count[item.kind] += 1

    def remove(self, progress: Progress[RequestT]) -> None:
        """Remove a waiting request; its committed step must be the one it was added with."""
        kind, version = progress.item.kind, progress.item.version
        self._queues[kind, version].remove(progress)
        self._left(kind, version, 1)

    def take(self, version: Hashable, kinds: Collection[RequestKind], count: int) -> list[Progress[RequestT]]:
        """Take the next requests of one lane, at most `count`; empty when nothing fits.

        Args:
            version: version of the weights of all.
            kinds: kinds that may be taken.
            count: largest number of requests, at least 1.
        """
        found = self._next(version, kinds)
        if found is None:
            return []
        kind, queue = found
        self._takes += 1
        queue.served = self._takes
        taken = queue.take(count)
        self._left(kind, version, len(taken))
        return taken

    def first(self, version: Hashable, kinds: Collection[RequestKind]) -> Progress[RequestT] | None:
        """Return the first request that `take` would return; None when nothing fits."""
        found = self._next(version, kinds)
        return None if found is None else found[1].first

    def lanes(self, kind: RequestKind) -> list[tuple[int, int]]:
        """Return the denoising steps left of each lane's requests, and their number."""
        lanes = [queue.lanes for (one, _), queue in self._queues.items() if one is kind]
        return [(steps - step, len(lane)) for each in lanes for (steps, step), lane in each.items()]

    def _next(
        self, version: Hashable, kinds: Collection[RequestKind]
    ) -> tuple[RequestKind, _VersionQueue[RequestT]] | None:
        """Return the kind that is served next, and its queue."""
        for equals in PRIORITIES:
            there = [
                (-queue.furthest, queue.served, kind, queue)
                for kind in equals
                if kind in kinds and (queue := self._queues.get((kind, version))) is not None
            ]
            if there:
                # Two queues never tie to the end: their kinds differ.
                _, _, kind, queue = min(there)
                return kind, queue
        return None

    def _left(self, kind: RequestKind, version: Hashable, count: int) -> None:
        self.count[kind] -= count
        if not self._queues[kind, version].lanes:
            del self._queues[kind, version]
