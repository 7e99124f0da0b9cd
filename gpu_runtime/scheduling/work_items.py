"""What the pull scheduler hands out and takes back, as values. Pure: no clock, no Ray, no torch."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from gpu_runtime.scheduling.requests import RequestKind
from storage.errors import SchedulingError

RequestT = TypeVar("RequestT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class WorkItem(Generic[RequestT]):
    """A request as the scheduler sees it.

    Attributes:
        request: its identity.
        kind: why it is generated; decides its priority.
        steps: all denoising steps it takes, at least 1.
        version: of the weights it must be generated with, from its first step to its last.

    Raises:
        SchedulingError: if it takes less than one step.
    """

    request: RequestT
    kind: RequestKind
    steps: int
    version: Hashable

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SchedulingError(f"request {self.request!r} takes {self.steps} steps; give it at least 1")


class Commit(NamedTuple):
    """How far a request has got, and where its state lies.

    Attributes:
        step: denoising steps done.
        state: an opaque reference; None before the first commit.
    """

    step: int
    state: object


@dataclass(frozen=True)
class Lease(Generic[RequestT]):
    """A worker's right to work on requests that can be advanced in one batch.

    Attributes:
        number: grows with every lease that a scheduler grants.
        holder: the worker.
        kind: of all its requests.
        version: of the weights of all its requests.
        steps: denoising steps that each of them takes in all.
        step: denoising steps that each of them had behind it when the lease was granted.
        requests: at least one.
        states: the state of each request's last commit, in the order of `requests`.
    """

    number: int
    holder: str
    kind: RequestKind
    version: Hashable
    steps: int
    step: int
    requests: tuple[RequestT, ...]
    states: tuple[object, ...] = field(compare=False)
