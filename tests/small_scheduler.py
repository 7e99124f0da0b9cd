"""Shorthands for tests of the pull scheduler."""

from __future__ import annotations

from typing import Any

from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.requests import Lease, RequestKind, WorkItem

LEASE_S = 10.0


def item(name: str, kind: RequestKind = RequestKind.ROLLOUT, steps: int = 4, version: int = 1):
    return WorkItem(name, kind, steps, version)


def scheduler(*items: WorkItem[str], batch_size: int = 2, max_held: int = 8) -> PullScheduler[str]:
    made: PullScheduler[str] = PullScheduler(batch_size, LEASE_S, max_held)
    made.add(items)
    return made


def pulled(queue: PullScheduler[str], worker: str = "a", now: float = 0.0, **others: Any) -> Lease[str]:
    lease = queue.pull(worker, now, **{"holds": 1, "room": 8, **others})
    assert lease is not None
    return lease


def nothing(queue: PullScheduler[str], worker: str = "a", now: float = 0.0, **others: Any) -> bool:
    return queue.pull(worker, now, **{"holds": 1, "room": 8, **others}) is None
