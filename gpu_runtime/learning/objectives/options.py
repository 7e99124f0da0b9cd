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


class NftOptions(Section):
    """Options of `nft`."""

    beta: float = Field(default=0.1, gt=0, le=1)
    """Strength of the implicit guidance; the smaller, the further an iteration may move the policy."""

    times: int = Field(default=5, ge=1, le=64)
    """Number of noise levels at which each sample is trained on."""

    shared: bool = True
    """Train on all samples of a prompt group with the same noise at the same noise levels, so that their
    effect on the loss cancels in the group's differences (V-GRPO, arXiv 2604.23380)."""
