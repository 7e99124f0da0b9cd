"""The work there is: images to generate, the leases under which they are, and what is left of a phase.

Plain values, without torch, Ray or a clock. A request's identity decides every bit of its image.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from storage.errors import SchedulingError


class RequestKind(StrEnum):
    """Why an image is generated; it decides how (steps, noise) and with what priority."""

    ROLLOUT = "rollout"
    EVALUATE = "evaluate"
    EXPLORE = "explore"


ALL_KINDS = frozenset(RequestKind)

PRIORITIES = ((RequestKind.ROLLOUT, RequestKind.EVALUATE), (RequestKind.EXPLORE,))
"""Kinds of one line are equals; a line is served when those above it have nothing to give."""

RequestT = TypeVar("RequestT", bound=Hashable)


class WeightsVersion(NamedTuple):
    """Which weights generate: those of a policy version, or their moving average.

    Attributes:
        policy_version: how often training has changed the policy.
        averaged: the moving average up to that version, with which a run is evaluated.
    """

    policy_version: int
    averaged: bool = False

    def __str__(self) -> str:
        return f"v{self.policy_version}" + ("-average" if self.averaged else "")


@dataclass(frozen=True, order=True)
class SampleRequest:
    """One image to generate; two requests that compare equal give the same bits.

    Attributes:
        kind: why it is generated.
        run_seed: the run's seed, an unsigned 32-bit integer.
        iteration: the iteration it belongs to (evaluation uses 0, so that it never changes).
        prompt_id: position of the prompt in its file.
        seed_index: which of the prompt's noise streams; a seed is the whole stream.
        policy_version: weights that must be used.
        prompt: the prompt's text; follows from prompt_id and is not compared.
        preview_step: denoising steps after which the model's prediction of the image is decoded; 0 for
            the finished image.
        schedule_steps: denoising steps from noise to image; 0 for those of its kind.
        averaged: the moving average of those weights is used.
        trainable: a draft that may be trained on: its trajectory is kept, as that of every rollout is.
        source: the image that the prompt asks to change (`storage.prompts.sources`); empty where there is
            none. It follows from prompt_id and is not compared.
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
        """Whether more is wanted than the image."""
        return self.trainable or self.kind is not RequestKind.EXPLORE

    @property
    def as_rollout(self) -> SampleRequest:
        """The rollout with the same weights, which a trainable draft equals to the bit."""
        return replace(self, kind=RequestKind.ROLLOUT, trainable=False)

    @property
    def weights(self) -> WeightsVersion:
        """The weights that must be used."""
        return WeightsVersion(self.policy_version, self.averaged)


def evaluation_request(
    run_seed: int, prompt_id: int, seed_index: int, prompt: str, weights: WeightsVersion, source: str = ""
) -> SampleRequest:
    """A held-out image; its noise is the same at every evaluation.

    Args:
        run_seed: the run's seed.
        prompt_id: position of the prompt in the file of held-out ones.
        seed_index: which of the prompt's noise streams.
        prompt: the prompt's text.
        weights: that must be used.
        source: the image that the prompt asks to change.
    """
    return SampleRequest(
        RequestKind.EVALUATE, run_seed, 0, prompt_id, seed_index, weights.policy_version, prompt,
        averaged=weights.averaged, source=source,
    )  # fmt: skip


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


@dataclass(frozen=True)
class UnderWay:
    """A batch that a group works on.

    Attributes:
        steps: denoising steps left.
        bound: how many of them are begun: the group does those, whatever is planned.
    """

    steps: int
    bound: int


@dataclass(frozen=True)
class WorkLeft:
    """What is left of a phase.

    Attributes:
        waiting: denoising steps left of each batch that no group works on, in the order they are taken in.
        under_way: what the groups work on, by their names.
    """

    waiting: tuple[int, ...]
    under_way: Mapping[str, UnderWay]

    @property
    def batches(self) -> int:
        """Batches that are not finished."""
        return len(self.waiting) + len(self.under_way)

    @property
    def steps(self) -> int:
        """Denoising steps of all batches together that are left."""
        return sum(self.waiting) + sum(one.steps for one in self.under_way.values())
