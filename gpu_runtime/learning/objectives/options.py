"""What the project's own objectives read of `[algorithm.options]`; imports none of them."""

from __future__ import annotations

from pydantic import Field

from storage.config.section import Section

ADVANTAGE_CLIP = 5.0
"""Largest magnitude of an advantage, as in the public code of Flow-GRPO and DiffusionNFT."""


class GrpoOptions(Section):
    """Of `grpo`."""

    clip_range: float = Field(default=1e-3, gt=0, lt=1)
    """Clip range of the probability ratio; small because log-probabilities are means."""


class NftOptions(Section):
    """Of `nft`."""

    beta: float = Field(default=0.1, gt=0, le=1)
    """Strength of the implicit guidance; the smaller, the further an iteration may go."""

    times: int = Field(default=5, ge=1, le=64)
    """Noise levels at which each sample is trained on."""

    shared: bool = True
    """All samples of a prompt group are trained on with the same noise at the same noise levels, so that what
    these do to the loss cancels in the group's differences (V-GRPO, arXiv 2604.23380)."""
