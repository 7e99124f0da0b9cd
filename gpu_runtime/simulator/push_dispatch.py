"""Dispatch by shares dealt in advance, the baseline for pulling. Pure.

Leases, commits and deliveries are those of the pull scheduler. Only the assignment differs: every worker has
its share from the beginning, and never takes from another's.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Generic

from gpu_runtime.scheduling.open_requests import Progress, WaitingRequests
from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import Lease, RequestKind, RequestT, WorkItem


class _Shares(WaitingRequests[RequestT], Generic[RequestT]):
    """Waiting requests by the worker that they are dealt to; those without a worker are in a pool."""

    def __init__(self, workers: Iterable[str]) -> None:
        super().__init__()
        self.of: dict[str, WaitingRequests[RequestT]] = {worker: WaitingRequests() for worker in workers}
        self.turn = ""
        self._pool: WaitingRequests[RequestT] = WaitingRequests()
        self._owner: dict[Progress[RequestT], str] = {}

    def add(self, progress: Progress[RequestT], first: bool = False) -> None:
        self._share(progress).add(progress, first)
        self.count[progress.item.kind] += 1

    def remove(self, progress: Progress[RequestT]) -> None:
        self._share(progress).remove(progress)
        self.count[progress.item.kind] -= 1

    def take(self, version: Hashable, kinds: Collection[RequestKind], count: int) -> list[Progress[RequestT]]:
        taken = self.of[self.turn].take(version, kinds, count)
        for progress in taken:
            self.count[progress.item.kind] -= 1
        return taken

    def deal(self, version: Hashable, batch_size: int) -> None:
        """Deal out the pool, a batch to each worker in turn."""
        for worker in cycle(tuple(self.of)):
            batch = self._pool.take(version, tuple(RequestKind), batch_size)
            if not batch:
                return
            for progress in batch:
                self._owner[progress] = worker
                self.of[worker].add(progress)

    def drop(self, worker: str, version: Hashable) -> None:
        """Move the share of a worker that is gone to the pool."""
        share = self.of.pop(worker, None)
        while share is not None and (left := share.take(version, tuple(RequestKind), 1)):
            del self._owner[left[0]]
            self._pool.add(left[0])

    def _share(self, progress: Progress[RequestT]) -> WaitingRequests[RequestT]:
        return self.of.get(self._owner.get(progress, ""), self._pool)


class PushDispatch(PullScheduler[RequestT], Generic[RequestT]):
    """Deals requests of one policy version round-robin, in batches, to the workers present at first.

    When a worker is lost or gets a notice, its share is dealt over the remaining ones, from its commits. A
    worker that comes later has nothing until then, unless it is alone.

    Args:
        batch_size, lease_s, max_held: arguments of the pull scheduler.
        workers: the workers present at first.
        version: the policy version of all requests.
    """

    def __init__(
        self, batch_size: int, lease_s: float, max_held: int, workers: Sequence[str], version: Hashable
    ) -> None:
        super().__init__(batch_size, lease_s, max_held)
        self._shares: _Shares[RequestT] = _Shares(workers)
        self._waiting = self._shares
        self._version = version

    def add(self, items: Iterable[WorkItem[RequestT]]) -> None:
        """See `PullScheduler.add`; the requests are dealt at once."""
        super().add(items)
        self._shares.deal(self._version, self._batch_size)

    def pull(
        self,
        worker: str,
        now: float,
        holds: Hashable,
        room: int,
        kinds: Collection[RequestKind] = tuple(RequestKind),
    ):
        """Return the next batch of the worker's share."""
        if worker not in self._shares.of:
            alone = not self._shares.of
            self._shares.of[worker] = WaitingRequests()
            if alone:
                self._shares.deal(self._version, self._batch_size)
        self._shares.turn = worker
        return super().pull(worker, now, holds, room, kinds)

    def on_worker_lost(
        self, worker: str, reached: Mapping[RequestT, int] | None = None
    ) -> tuple[RequestT, ...]:
        """See `PullScheduler.on_worker_lost`; the worker's unfinished requests are dealt over those left."""
        back = super().on_worker_lost(worker, reached)
        self.on_notice(worker)
        return back

    def on_notice(self, worker: str) -> None:
        """Deal the share of a worker that begins nothing any more over those left."""
        self._shares.drop(worker, self._version)
        self._shares.deal(self._version, self._batch_size)

    def hand_back(self, whose: str | Lease[RequestT]) -> tuple[RequestT, ...]:
        """See `PullScheduler.hand_back`; requests of a worker under notice are dealt over those left."""
        back = super().hand_back(whose)
        self._shares.deal(self._version, self._batch_size)
        return back
