"""Requests that no worker holds, and which of them are next. Pure: no clock, no Ray, no torch.

A lane holds requests that can be advanced in one batch: of one kind, version, number of denoising
steps and committed step, in the order of their coming. Every change costs the same however many requests
wait; choosing a lane costs a heap's logarithm of the committed steps that occur.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Generic, TypeAlias

from gpu_runtime.scheduling.progress import Progress
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.work_items import RequestT

_Key = tuple[int, int]  # all denoising steps, committed ones

# Kinds of one line are equals; a line is served when those above it have nothing to give.
PRIORITIES = ((RequestKind.ROLLOUT, RequestKind.EVALUATE), (RequestKind.EXPLORE,))

# Ordered: both ends, and removal from the middle, in constant time.
_Lane: TypeAlias = OrderedDict[Progress[RequestT], None]


class _VersionQueue(Generic[RequestT]):
    """The lanes of one kind and version; a lane is there while something waits in it."""

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
        """Committed steps of what is next."""
        while self._begun and not self._begun[0][3]:
            heapq.heappop(self._begun)
        return -self._begun[0][0] if self._begun else 0

    @property
    def first(self) -> Progress[RequestT]:
        """What `take` takes first."""
        return next(iter(self.lanes[self._next]))

    def take(self, count: int) -> list[Progress[RequestT]]:
        key = self._next
        lane = self.lanes[key]
        taken = [lane.popitem(last=False)[0] for _ in range(min(count, len(lane)))]
        self._forget_if_empty(key)
        return taken

    @property
    def _next(self) -> _Key:
        """The lane that is served next."""
        step = self.furthest
        return (self._begun[0][2], step) if step else next(iter(self._fresh))

    def _forget_if_empty(self, key: _Key) -> None:
        if not self.lanes[key]:
            del self.lanes[key]
            self._fresh.pop(key, None)


class WaitingRequests(Generic[RequestT]):
    """Which waiting requests a worker gets next.

    Rollout and evaluation come before exploration. Among equals, what goes on from a commit comes
    first, the furthest ahead of all; then kinds take turns.
    """

    def __init__(self) -> None:
        self.count = dict.fromkeys(RequestKind, 0)
        self._queues: dict[tuple[RequestKind, Hashable], _VersionQueue[RequestT]] = {}
        self._takes = 0

    def add(self, progress: Progress[RequestT], first: bool = False) -> None:
        """Let a request wait in the lane of its committed step.

        Args:
            progress: the request.
            first: before all others of its lane, because it has had its turn already.
        """
        item = progress.item
        queue = self._queues.get((item.kind, item.version))
        if queue is None:
            queue = self._queues[item.kind, item.version] = _VersionQueue()
        queue.add(progress, first)
        self.count[item.kind] += 1

    def remove(self, progress: Progress[RequestT]) -> None:
        """A request waits no more; its committed step must be the one it was added with."""
        kind, version = progress.item.kind, progress.item.version
        self._queues[kind, version].remove(progress)
        self._left(kind, version, 1)

    def take(self, version: Hashable, kinds: Collection[RequestKind], count: int) -> list[Progress[RequestT]]:
        """The next requests, alike, of a version and some kinds.

        Args:
            version: of the weights of all.
            kinds: those that may be taken.
            count: most requests, at least 1.

        Returns:
            At most `count` requests of one lane; empty when nothing fits.
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
        """What `take` takes first of a version and some kinds; None when nothing fits."""
        found = self._next(version, kinds)
        return None if found is None else found[1].first

    def _next(
        self, version: Hashable, kinds: Collection[RequestKind]
    ) -> tuple[RequestKind, _VersionQueue[RequestT]] | None:
        """The kind that is served next, and what waits of it."""
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
