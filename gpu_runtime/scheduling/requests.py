"""The vocabulary of work: images to generate, their leases, and a phase's remaining work.

Plain values, without torch, Ray or a clock. A request's identity decides every bit of its image.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from storage.errors import SchedulingError


class RequestKind(StrEnum):
    """The purpose of an image, which decides its steps and its noise."""

    ROLLOUT = "rollout"
    EVALUATE = "evaluate"
    EXPLORE = "explore"


RequestT = TypeVar("RequestT", bound=Hashable)


class WeightsVersion(NamedTuple):
    """The weights to generate with: a policy version's, or their moving average.

    Attributes:
        policy_version: number of times that training has changed the policy.
        averaged: True for the moving average up to that version, used for evaluations.
    """

    policy_version: int
    averaged: bool = False

    def __str__(self) -> str:
        return f"v{self.policy_version}" + ("-average" if self.averaged else "")


@dataclass(frozen=True, order=True)
class SampleRequest:
    """One image to generate; two requests that compare equal give the same bits.

    Attributes:
        run_seed: seed of the run, an unsigned 32-bit integer.
        iteration: iteration it belongs to (evaluation uses 0, so that it never changes).
        prompt_id: position of the prompt in its file.
        seed_index: number of the prompt's noise stream; a seed is the whole stream.
        policy_version: version of the weights that must be used.
        prompt: text of the prompt; follows from prompt_id and is not compared.
        preview_step: denoising steps after which the model's prediction of the image is decoded; 0 for
            the finished image.
        schedule_steps: denoising steps from noise to image; 0 for the default of its kind.
        averaged: True if the moving average of those weights is used.
        trainable: True for a draft that training may use: its trajectory is kept, like a rollout's.
        source: image that the prompt asks to change (`storage.prompts.sources`); empty if there is none. It
            follows from prompt_id and is not compared.
    """

    kind: RequestKind
    run_seed: int
    iteration: int
    prompt_id: int
    seed_index: int
    policy_version: int
    prompt: str = field(compare=False)
    preview_step: int = 0
    schedule_steps: int = 0
    averaged: bool = False
    trainable: bool = False
    source: str = field(default="", compare=False)

    @property
    def keeps_trajectory(self) -> bool:
        """True if the trajectory is needed, not only the image."""
        return self.trainable or self.kind is not RequestKind.EXPLORE

    @property
    def as_rollout(self) -> SampleRequest:
        """Rollout with the same weights, which a trainable draft equals to the bit."""
        return replace(self, kind=RequestKind.ROLLOUT, trainable=False)

    @property
    def weights(self) -> WeightsVersion:
        """Weights that must be used."""
        return WeightsVersion(self.policy_version, self.averaged)


@dataclass(frozen=True, slots=True)
class WorkItem(Generic[RequestT]):
    """A request as the scheduler sees it.

    Attributes:
        kind: its purpose.
        steps: all denoising steps it takes, at least 1.
        version: version of the weights it must be generated with, from its first step to its last.

    Raises:
        SchedulingError: if it takes fewer than one step.
    """

    request: RequestT
    kind: RequestKind
    steps: int
    version: Hashable

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SchedulingError(f"request {self.request!r} takes {self.steps} steps; give it at least 1")


@dataclass(frozen=True)
class Lease(Generic[RequestT]):
    """A worker's right to work on requests that can be advanced in one batch.

    Attributes:
        number: number that grows with every lease that a scheduler grants.
        steps: denoising steps that each of them takes in all.
        step: denoising steps that each of them had done when the lease was granted.
        requests: requests of the lease, at least one.
        states: state of each request's last commit, in the order of `requests`.
    """

    number: int
    holder: str
    kind: RequestKind
    version: Hashable
    steps: int
    step: int
    requests: tuple[RequestT, ...]
    states: tuple[object, ...] = field(compare=False)


@dataclass(frozen=True)
class UnderWay:
    """A batch that a group works on.

    Attributes:
        steps: denoising steps left.
        bound: number of them already begun, which the group finishes in any case.
    """

    steps: int
    bound: int


@dataclass(frozen=True)
class WorkLeft:
    """The work left in a phase.

    Attributes:
        waiting: denoising steps left of each batch that no group works on, in their order.
        under_way: batches of the groups, by their names.
    """

    waiting: tuple[int, ...]
    under_way: Mapping[str, UnderWay]

    @property
    def batches(self) -> int:
        """Number of unfinished batches."""
        return len(self.waiting) + len(self.under_way)

    @property
    def steps(self) -> int:
        """Denoising steps left of all batches together."""
        return sum(self.waiting) + sum(one.steps for one in self.under_way.values())
