"""Unfinished requests and the valid leases on them, which point at each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from gpu_runtime.scheduling.work_items import Lease, RequestT, WorkItem


@dataclass(slots=True, eq=False)
class Progress(Generic[RequestT]):
    """An unfinished request and how far it has got.

    Attributes:
        item: the request.
        first_lease: number of the first lease that can hold it; leases before belong to an earlier
            request of the same identity.
        step: committed denoising steps.
        state: reference to the state after them.
        lease: under which it is worked on; None while it waits.
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
        lease: as it was granted.
        held: those of its requests that are still its holder's; never empty.
        expires_s: when it ends unless it is renewed.
    """

    lease: Lease[RequestT]
    held: dict[RequestT, Progress[RequestT]]
    expires_s: float
