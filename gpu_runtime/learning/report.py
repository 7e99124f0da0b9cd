"""What a trainer says of an iteration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffPolicyFigures:
    """What an iteration shows of its samples of older weights, before any weight changes.

    Attributes:
        samples: that older weights drew.
        ratio_spread: root mean square of the logarithm of the probability ratio over stochastic steps; where
            sampling is an ODE, of the change of a denoising step relative to its length.
        kl: estimate of the divergence of the new policy from the old one, of a step and a number of the
            latents: the mean of r - 1 - log r (Schulman, *Approximating KL divergence*, 2020); 0 of an ODE.
        clip_share: share of these samples' steps without a gradient at the first update, since their ratio
            is out of the objective's clip range.
    """

    samples: int
    ratio_spread: float
    kl: float
    clip_share: float


@dataclass(frozen=True)
class TrainingReport:
    """What one iteration's training did.

    Attributes:
        training_steps: optimiser steps taken; 0 where no group had variance.
        loss, kl, clip_share, gradient_norm: means over the iteration's updates.
        ratio_deviation: largest |ratio - 1| at the first update, before any weight changed; `nft` looks
            at one batch of stochastic steps. Samples of older weights are left out.
        off_policy: of these; None where there are none.
        ratio_mean: mean over the updates of the probability ratio of the policy to the one that drew the
            samples; 0 where no update was taken, or the objective has no ratio.
        approx_kl: estimate of the divergence of the two, as in `OffPolicyFigures`.
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
