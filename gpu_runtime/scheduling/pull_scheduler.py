"""Requests that free workers pull, with leases, and commits that outlive their worker.

Pure: no Ray, no torch, no clock. Invariants:

- A request is accepted once. A repeated delivery is dropped and counted.
- An open request waits in one lane or is held by one valid lease; it and its lease point at each other. No
  worker has two valid leases. A lease is valid until it expires, is handed back or lost, or is fully
  delivered.
- The committed step of a request never falls. A commit counts if it is ahead of the known one, from any
  worker: one that was given up but still computes saves the next worker those steps, since a sample's
  numbers do not depend on the worker. This does not restore its lease.
- A delivery counts if the request is still open, even from a worker that was given up.
- A lane holds requests that can be advanced in one batch: of one kind, version, number of denoising steps and
  committed step, in order of arrival.
- The cost of a change does not depend on how many requests wait or are leased; choosing a lane costs the
  logarithm of the number of different committed steps, with a heap.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias

from gpu_runtime.scheduling.requests import Lease, RequestKind, RequestT, WorkItem
from storage.errors import SchedulingError

_COMMIT_STEPS = 4
"""Unit of the denoising steps between two commits, unless the settings fix their number."""

_WORTH_A_COMMIT_S = 1.0
"""Least seconds of work between two commits, unless the settings fix the number of steps."""

DRAFT_CHUNK_STEPS = 2
"""Denoising steps per call for drafts, one call at a time on a device: the rollout may have to wait for one
when a training window closes."""


def steps_to_commit(configured: int, step_s: float | None, drafts: bool = False) -> int:
    """Return the denoising steps of a device's next chunk, after which its samples are saved.

    A commit costs some milliseconds for any model: unless `configured` (`runtime.commit_steps`, else 0)
    fixes its interval, the last step's time decides how many steps are worth one.

    Args:
        configured: `runtime.commit_steps`; 0 to decide by measured times.
        step_s: seconds of the device's last denoising step; None before its first.
        drafts: True if it makes drafts, which end with the training window.
    """
    steps = configured or _COMMIT_STEPS
    if not configured and step_s:
        steps *= math.ceil(_WORTH_A_COMMIT_S / (_COMMIT_STEPS * step_s))
    return min(steps, DRAFT_CHUNK_STEPS) if drafts else steps


@dataclass
class Counters:
    """Counts of commits and of deviations from plan.

    Attributes:
        returned: requests put back to wait: handed back, expired or lost.
        duplicates: deliveries of requests no longer open, because already delivered or dropped.
        expired: leases of hung workers.
        stale_commits: commits behind the known one, or of requests no longer open.
        commits: calls that committed states, one for all states of a lease.
        redone_steps: denoising steps past the last commit that were lost with workers.
    """

    returned: int = 0
    duplicates: int = 0
    expired: int = 0
    stale_commits: int = 0
    commits: int = 0
    redone_steps: int = 0


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


class PullScheduler(Generic[RequestT]):
    """Requests of several kinds and versions of the weights, leased in batches to workers that pull.

    A delivered or dropped identity may be added again; it is then a new request, which earlier leases cannot
    affect.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self._open: dict[RequestT, Progress[RequestT]] = {}
        self._count = dict.fromkeys(RequestKind, 0)
        self._waiting: WaitingRequests[RequestT] = WaitingRequests()
        self._leases: dict[str, LiveLease[RequestT]] = {}  # the valid ones, by worker
        self._next_number = 0

    def add(self, items: Iterable[WorkItem[RequestT]]) -> None:
        """Add requests behind the earlier ones of their kind, version and steps; all of them or none.

        Raises:
            SchedulingError: if a request is already open.
        """
        new: dict[RequestT, Progress[RequestT]] = {}
        for item in items:
            if item.request in self._open or item.request in new:
                raise SchedulingError(f"request {item.request!r} is already open; drop it to add it again")
            new[item.request] = Progress(item, self._next_number)
        self._open.update(new)
        for progress in new.values():
            self._count[progress.item.kind] += 1
            self._waiting.add(progress)

    def unfinished(self, *kinds: RequestKind) -> int:
        """Return the number of undelivered requests, waiting or leased, of some kinds; by default of all."""
        return sum(self._count[kind] for kind in kinds or RequestKind)

    def waiting(self, *kinds: RequestKind) -> int:
        """Return the number of requests that no worker holds, of some kinds; by default of all."""
        return sum(self._waiting.count[kind] for kind in kinds or RequestKind)

    def waiting_steps(self, kind: RequestKind) -> list[int]:
        """Return the denoising steps left of each request of a kind that no worker holds, in rising order."""
        return [left for left, count in sorted(self._waiting.lanes(kind)) for _ in range(count)]

    def is_valid(self, lease: Lease[RequestT]) -> bool:
        """Return True if a lease has not ended."""
        return self._valid(lease) is not None

    def committed(self, request: RequestT) -> tuple[int, object] | None:
        """Return the steps and state of an open request's newest commit; None if not open."""
        progress = self._open.get(request)
        return None if progress is None else (progress.step, progress.state)

    def drop(self, requests: Iterable[RequestT]) -> int:
        """Forget requests, leased or not, and return how many of them were open."""
        dropped = [self._open[request] for request in dict.fromkeys(requests) if request in self._open]
        for progress in dropped:
            self._finish(progress)
        return len(dropped)

    def drop_waiting(self, kind: RequestKind) -> int:
        """Forget all requests of a kind that no worker holds, and return their number."""
        of_kind = (progress for progress in self._open.values() if progress.item.kind is kind)
        return self.drop([progress.item.request for progress in of_kind if progress.lease is None])

    def pull(self, worker: str, holds: Hashable, room: int, kind: RequestKind) -> Lease[RequestT] | None:
        """Lease the next requests to a worker that holds a version and has room for this many.

        All are of one kind, version, number of steps and committed step. None if nothing fits or the
        worker has a lease.

        Args:
            worker: name of the worker.
            holds: version of the weights that it holds.
            room: most requests that it can take.
            kind: kind of request to lease.
        """
        if worker in self._leases:
            return None
        taken = self._waiting.take(holds, kind, room)
        if not taken:
            return None
        item = taken[0].item
        requests = tuple([progress.item.request for progress in taken])
        states = tuple([progress.state for progress in taken])
        number, self._next_number = self._next_number, self._next_number + 1
        lease = Lease(number, worker, item.kind, item.version, item.steps, taken[0].step, requests, states)
        live = self._leases[worker] = LiveLease(lease, dict(zip(requests, taken, strict=True)))
        for progress in taken:
            progress.lease = live
        return lease

    def following(self, holds: Hashable, kind: RequestKind) -> WorkItem[RequestT] | None:
        """Return the first request of the next lease; None when nothing fits. Arguments as in `pull`."""
        progress = self._waiting.first(holds, kind)
        return None if progress is None else progress.item

    def commit(
        self, lease: Lease[RequestT], commits: Mapping[RequestT, tuple[int, object]]
    ) -> tuple[RequestT, ...]:
        """Record the progress of requests.

        Args:
            lease: lease as it was granted, valid or not.
            commits: request → (denoising steps done, reference to the state); may be empty. The first of
                two commits of one step stays: their bits are the same.

        Returns:
            The requests of the lease that its holder must still do; if empty, the worker may stop.

        Raises:
            SchedulingError: if a request is not in this lease, or a step is not between 0 and the lease's
                last; nothing is then recorded.
        """
        for request, (step, _) in commits.items():
            if not 0 <= step <= lease.steps:
                raise SchedulingError(
                    f"request {request!r} was committed at step {step}; commit from 0 to {lease.steps}"
                )
        self._refuse_strangers(lease, commits)
        self.counters.commits += bool(commits)
        for request, (step, state) in commits.items():
            progress = self._still_open(lease, request)
            if progress is None or step < progress.step:
                self.counters.stale_commits += 1
            elif step > progress.step:
                waits = progress.lease is None
                if waits:
                    self._waiting.remove(progress)
                progress.step, progress.state = step, state
                if waits:
                    self._waiting.add(progress, first=True)
        live = self._valid(lease)
        return () if live is None else tuple(live.held)

    def deliver(self, lease: Lease[RequestT], requests: Iterable[RequestT]) -> tuple[RequestT, ...]:
        """Finish requests of a lease.

        Args:
            lease: lease that they were granted with, valid or not.
            requests: finished requests.

        Returns:
            The accepted requests; the others were already delivered or dropped, and are counted.

        Raises:
            SchedulingError: if a request is not in this lease; nothing is then accepted.
        """
        requests = tuple(requests)
        self._refuse_strangers(lease, requests)
        accepted: list[RequestT] = []
        for request in requests:
            progress = self._still_open(lease, request)
            if progress is None:
                self.counters.duplicates += 1
            else:
                self._finish(progress)
                accepted.append(request)
        return tuple(accepted)

    def expire(self, lease: Lease[RequestT], reached: Mapping[RequestT, int]) -> tuple[RequestT, ...]:
        """End the lease of a hung worker; see `on_worker_lost`."""
        if not self.is_valid(lease):
            return ()
        self.counters.expired += 1
        return self.on_worker_lost(lease.holder, reached)

    def hand_back(self, lease: Lease[RequestT]) -> tuple[RequestT, ...]:
        """End a lease that its worker gives up; return the requests that wait again."""
        live = self._valid(lease)
        return () if live is None else self._take_back(live)

    def on_worker_lost(
        self, worker: str, reached: Mapping[RequestT, int] | None = None
    ) -> tuple[RequestT, ...]:
        """End a dead worker's lease, and return what waits again.

        Steps of `reached` past the last commit count as redone.
        """
        live = self._leases.get(worker)
        if live is None:
            return ()
        for request, progress in live.held.items():
            step = (reached or {}).get(request, 0)
            self.counters.redone_steps += max(0, step - progress.step)
        return self._take_back(live)

    def _valid(self, lease: Lease[RequestT]) -> LiveLease[RequestT] | None:
        """Return what a lease still holds; None if it has ended."""
        live = self._leases.get(lease.holder)
        return live if live is not None and live.lease.number == lease.number else None

    def _refuse_strangers(self, lease: Lease[RequestT], requests: Collection[RequestT]) -> None:
        """Refuse requests that a lease never had."""
        live = self._valid(lease)
        held = {} if live is None else live.held  # the fast path for what is still held
        strangers = [request for request in requests if request not in held and request not in lease.requests]
        if strangers or lease.number >= self._next_number:
            raise SchedulingError(
                f"lease {lease.number} of {lease.holder!r} was not granted here for "
                f"{strangers or lease.requests}; use the lease that `pull` returned with these requests"
            )

    def _still_open(self, lease: Lease[RequestT], request: RequestT) -> Progress[RequestT] | None:
        progress = self._open.get(request)
        return progress if progress is not None and progress.first_lease <= lease.number else None

    def _finish(self, progress: Progress[RequestT]) -> None:
        live, progress.lease = progress.lease, None
        if live is None:
            self._waiting.remove(progress)
        else:
            del live.held[progress.item.request]
            if not live.held:
                del self._leases[live.lease.holder]
        del self._open[progress.item.request]
        self._count[progress.item.kind] -= 1

    def _take_back(self, live: LiveLease[RequestT]) -> tuple[RequestT, ...]:
        del self._leases[live.lease.holder]
        back = list(live.held.values())
        # Each goes to the front, so add the last one first to keep their order.
        for progress in reversed(back):
            progress.lease = None
            self._waiting.add(progress, first=True)
        self.counters.returned += len(back)
        return tuple(progress.item.request for progress in back)
