"""Unfinished requests, and the order in which waiting ones are leased.

No clock, no Ray, no torch. Invariants:

- An open request waits in one lane or is held by one valid lease; it and its lease point at each other.
- A lane holds requests that can be advanced in one batch: of one kind, version, number of denoising steps and
  committed step, in order of arrival.
- The cost of a change does not depend on how many requests wait or are leased; choosing a lane costs the
  logarithm of the number of different committed steps, with a heap.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias

from gpu_runtime.scheduling.requests import Lease, RequestKind, RequestT, WorkItem


@dataclass(slots=True, eq=False)
class Progress(Generic[RequestT]):
    """An unfinished request and its progress.

    Attributes:
        first_lease: number of the first lease that can hold it; lower numbers belong to an earlier request
            with the same identity.
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
    """

    lease: Lease[RequestT]
    held: dict[RequestT, Progress[RequestT]]


_Key = tuple[int, int]  # all denoising steps, committed ones

# Ordered: both ends, and removal from the middle, in constant time.
_Lane: TypeAlias = OrderedDict[Progress[RequestT], None]


@dataclass(slots=True)
class _Queue(Generic[RequestT]):
    """The lanes of one kind and version; a lane exists while something waits in it.

    Attributes:
        lanes: lanes in the order in which they came to exist.
        begun: heap of the lanes with committed steps, the furthest first: minus committed steps, serial, all
            steps, lane. Lanes that have run empty meanwhile are thrown away when they come up.
    """

    lanes: OrderedDict[_Key, _Lane[RequestT]] = field(default_factory=OrderedDict)
    begun: list[tuple[int, int, int, _Lane[RequestT]]] = field(default_factory=list)


class WaitingRequests(Generic[RequestT]):
    """The waiting requests of each kind, in the order of leasing.

    Those that continue from a commit come first, the furthest ahead leading.
    """

    def __init__(self) -> None:
        self.count = dict.fromkeys(RequestKind, 0)
        self._queues: dict[tuple[RequestKind, Hashable], _Queue[RequestT]] = {}
        self._serials = itertools.count()

    def add(self, progress: Progress[RequestT], first: bool = False) -> None:
        """Let a request wait in its lane, at the front if `first` because it already had its turn."""
        item, key = progress.item, (progress.item.steps, progress.step)
        queue = self._queues.get((item.kind, item.version))
        if queue is None:
            queue = self._queues[item.kind, item.version] = _Queue()
        lane = queue.lanes.get(key)
        if lane is None:
            lane = queue.lanes[key] = OrderedDict()
            if progress.step:
                heapq.heappush(queue.begun, (-progress.step, next(self._serials), item.steps, lane))
        lane[progress] = None
        if first:
            lane.move_to_end(progress, last=False)
        self.count[item.kind] += 1

    def remove(self, progress: Progress[RequestT]) -> None:
        """Remove a waiting request; its committed step must be the one it was added with."""
        item, key = progress.item, (progress.item.steps, progress.step)
        del self._queues[item.kind, item.version].lanes[key][progress]
        self._left(item.kind, item.version, key, 1)

    def take(self, version: Hashable, kind: RequestKind, count: int) -> list[Progress[RequestT]]:
        """Take the next requests of one lane, at most `count`; empty when nothing fits.

        Args:
            version: version of the weights of all.
            kind: kind of all.
            count: largest number of requests.
        """
        key = self._next(kind, version)
        if key is None:
            return []
        lane = self._queues[kind, version].lanes[key]
        taken = [lane.popitem(last=False)[0] for _ in range(min(count, len(lane)))]
        self._left(kind, version, key, len(taken))
        return taken

    def first(self, version: Hashable, kind: RequestKind) -> Progress[RequestT] | None:
        """Return the first request that `take` would return; None when nothing fits."""
        key = self._next(kind, version)
        return None if key is None else next(iter(self._queues[kind, version].lanes[key]))

    def lanes(self, kind: RequestKind) -> list[tuple[int, int]]:
        """Return the denoising steps left of each lane's requests, and their number."""
        lanes = [queue.lanes for (one, _), queue in self._queues.items() if one is kind]
        return [(steps - step, len(lane)) for each in lanes for (steps, step), lane in each.items()]

    def _next(self, kind: RequestKind, version: Hashable) -> _Key | None:
        """Return the key of the lane that is served next; None when nothing fits."""
        queue = self._queues.get((kind, version))
        if queue is None:
            return None
        while queue.begun and not queue.begun[0][3]:
            heapq.heappop(queue.begun)
        if not queue.begun:  # all lanes are of requests without a commit
            return next(iter(queue.lanes))
        minus_step, _, steps, _ = queue.begun[0]
        return steps, -minus_step

    def _left(self, kind: RequestKind, version: Hashable, key: _Key, count: int) -> None:
        """Account for requests that have left a lane."""
        self.count[kind] -= count
        queue = self._queues[kind, version]
        if not queue.lanes[key]:
            del queue.lanes[key]
        if not queue.lanes:
            del self._queues[kind, version]
