"""Dispatch by shares dealt in advance, the baseline for pulling. Pure.

Leases, commits and deliveries are those of the pull scheduler. Only the assignment differs: every worker has
its share from the beginning, and never takes from another worker's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import cycle

from gpu_runtime.scheduling.pull_scheduler import Progress, PullScheduler, WaitingRequests
from gpu_runtime.scheduling.requests import Lease, RequestKind, WorkItem


class _Shares(WaitingRequests[int]):
    """Waiting batches by the worker that they are dealt to; those without a worker are in a pool."""

    def __init__(self, workers: Iterable[str], version: Hashable, kind: RequestKind) -> None:
        super().__init__()
        self.of: dict[str, WaitingRequests[int]] = {worker: WaitingRequests() for worker in workers}
        self.turn = ""
        self._all = version, kind  # of all batches
        self._pool: WaitingRequests[int] = WaitingRequests()
        self._owner: dict[Progress[int], str] = {}

    def add(self, progress: Progress[int], first: bool = False) -> None:
        self._share(progress).add(progress, first)
        self.count[progress.item.kind] += 1

    def remove(self, progress: Progress[int]) -> None:
        self._share(progress).remove(progress)
        self.count[progress.item.kind] -= 1

    def take(self, version: Hashable, kind: RequestKind, count: int) -> list[Progress[int]]:
        taken = self.of[self.turn].take(version, kind, count)
        for progress in taken:
            self.count[progress.item.kind] -= 1
        return taken

    def first(self, version: Hashable, kind: RequestKind) -> Progress[int] | None:
        """Return any waiting batch; the asking worker may have none."""
        shares = (*self.of.values(), self._pool)
        return next((found for share in shares if (found := share.first(version, kind))), None)

    def deal(self) -> None:
        """Deal out the pool, a batch to each worker in turn."""
        for worker in cycle(tuple(self.of)):
            batch = self._pool.take(*self._all, 1)
            if not batch:
                return
            self._owner[batch[0]] = worker
            self.of[worker].add(batch[0])

    def deal_again(self, worker: str) -> None:
        """Deal a departed worker's share to the remaining workers."""
        share = self.of.pop(worker, None)
        while share is not None and (left := share.take(*self._all, 1)):
            del self._owner[left[0]]
            self._pool.add(left[0])
        self.deal()

    def _share(self, progress: Progress[int]) -> WaitingRequests[int]:
        return self.of.get(self._owner.get(progress, ""), self._pool)


class PushDispatch(PullScheduler[int]):
    """Deals a phase's batches round-robin to the workers present at its start.

    When a worker is lost or gets a notice, its share is dealt to the remaining ones, from its commits. A
    worker that comes later has nothing until then, unless it is alone.

    Args:
        workers: the workers present at the start.
        version: the policy version of all batches.
        kind: the kind of all batches.
    """

    def __init__(self, workers: Sequence[str], version: Hashable, kind: RequestKind) -> None:
        super().__init__()
        self._waiting = self._shares = _Shares(workers, version, kind)

    def add(self, items: Iterable[WorkItem[int]]) -> None:
        """See `PullScheduler.add`; the batches are dealt at once."""
        super().add(items)
        self._shares.deal()

    def pull(self, worker: str, holds: Hashable, room: int, kind: RequestKind) -> Lease[int] | None:
        """Return the next batch of the worker's share."""
        if worker not in self._shares.of:
            alone = not self._shares.of
            self._shares.of[worker] = WaitingRequests()
            if alone:
                self._shares.deal()
        self._shares.turn = worker
        return super().pull(worker, holds, room, kind)

    def on_worker_lost(self, worker: str, reached: Mapping[int, int] | None = None) -> tuple[int, ...]:
        """See `PullScheduler.on_worker_lost`; the worker's batches are dealt to the remaining workers."""
        back = super().on_worker_lost(worker, reached)
        self._shares.deal_again(worker)
        return back

    def on_notice(self, worker: str) -> None:
        """Deal the share of a worker under notice to the remaining workers."""
        self._shares.deal_again(worker)

    def hand_back(self, lease: Lease[int]) -> tuple[int, ...]:
        """See `PullScheduler.hand_back`; batches of a worker under notice are dealt to the others."""
        back = super().hand_back(lease)
        self._shares.deal()
        return back
