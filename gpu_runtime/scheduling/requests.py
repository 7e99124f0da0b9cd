"""The identity of one image to generate. Pure: no torch, no Ray, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple


class RequestKind(StrEnum):
    """Why an image is generated; it decides how (steps, noise) and with what priority."""

    ROLLOUT = "rollout"
    EVALUATE = "evaluate"
    EXPLORE = "explore"


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
