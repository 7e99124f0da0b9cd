"""The `[algorithm.options]` of the project's own objectives; imports no objective."""

from __future__ import annotations

from pydantic import Field

from storage.config.section import Section

ADVANTAGE_CLIP = 5.0
"""Largest magnitude of an advantage, as in the public code of Flow-GRPO and DiffusionNFT."""


class GrpoOptions(Section):
    """Options of `grpo`."""

    clip_range: float = Field(default=1e-3, gt=0, lt=1)
    """Clip range of the probability ratio; small because log-probabilities are means."""


class GuardOptions(Section):
    """Options of `grpo-guard`."""

    clip_range: float = Field(default=2e-5, gt=0, lt=1)
    """Clip range of the normalised ratio, which moves less than `grpo`'s ratio."""


class NoisedImagesOptions(Section):
    """Options of the objectives on re-noised final images."""

    times: int = Field(default=5, ge=1, le=64)
    """Number of noise levels at which each sample is trained on."""


class AdvantageWeightedOptions(NoisedImagesOptions):
    """Options of the objectives that weight each noised image by its advantage."""

    shared: bool = True
    """Train on all samples of a prompt group with the same noise at the same noise levels, so that their
    effect on the loss cancels in the group's differences (V-GRPO, arXiv 2604.23380)."""


class NftOptions(AdvantageWeightedOptions):
    """Options of `nft`."""

    beta: float = Field(default=0.1, gt=0, le=1)
    """Strength of the implicit guidance; the smaller, the further an iteration may move the policy."""


class AwmOptions(AdvantageWeightedOptions):
    """Options of `awm`."""

    clip_range: float = Field(default=1.0, gt=0, le=1)
    """Clip range of the ratio to the policy that training begins with; 1 as in the public recipes."""


class DpoOptions(NoisedImagesOptions):
    """Options of `dpo`."""

    beta: float = Field(default=50.0, gt=0, le=1e6)
    """Strength of the pull to the reference: the larger, the sooner a pair that the policy already separates
    stops counting. Half of it weighs the errors, as in public code, where it is 500 to 5,000."""

    pairs: int = Field(default=4, ge=1, le=256)
    """Most pairs of each prompt group: its best sample with its worst, the second best with the second
    worst, and so on, as long as the first of the two is better."""
