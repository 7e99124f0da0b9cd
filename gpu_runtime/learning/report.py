"""A trainer's report of an iteration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffPolicyFigures:
    """Figures of an iteration's samples from older weights, before any weight changes.

    Attributes:
        samples: number of samples that older weights drew.
        ratio_spread: root mean square of the logarithm of the probability ratio over stochastic steps; if
            sampling is an ODE, that of a denoising step's change relative to its length.
        kl: mean of r - 1 - log r, about half the mean square of log r, which Flow-GRPO's code calls
            `approx_kl`; 0 for an ODE. As log r is a mean over latent elements, this is far below the
            divergence per element, the mean of -log r, and only tells whether it grows.
        clip_share: share of these samples' steps without a gradient at the first update, because their
            ratio is outside the objective's clip range.
    """

    samples: int
    ratio_spread: float
    kl: float
    clip_share: float


@dataclass(frozen=True)
class TrainingReport:
    """The report of one iteration's training.

    Attributes:
        training_steps: optimiser steps taken; 0 if no group had variance.
        loss, kl, clip_share, gradient_norm: means over the iteration's updates.
        ratio_deviation: largest |ratio - 1| at the first update, before any weight changed; objectives on
            final images check one batch of stochastic steps. Samples from older weights are excluded.
        off_policy: figures of those samples; None if there are none.
        ratio_mean: mean over the updates of the probability ratio of the policy to the one that drew the
            samples; 0 if no update was taken, or the objective has no ratio.
        approx_kl: mean of r - 1 - log r, as `OffPolicyFigures.kl`.
        pair_accuracy, pair_margin: means over the updates of `BatchTerms`; both 0 for objectives without
            pairs.
    """

    training_steps: int
    loss: float
    kl: float
    clip_share: float
    gradient_norm: float
    ratio_deviation: float
    off_policy: OffPolicyFigures | None = None
    ratio_mean: float = 0.0
    approx_kl: float = 0.0
    pair_accuracy: float = 0.0
    pair_margin: float = 0.0
