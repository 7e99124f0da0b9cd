"""Flow-GRPO (arXiv 2505.05470): the clipped policy gradient over the stochastic steps of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.sde_step import kl_to_reference
from gpu_runtime.learning.objectives.options import GrpoOptions
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.objectives.stochastic_steps import StochasticSteps
from gpu_runtime.learning.policy import Policy
from storage.config.run_config import SamplingConfig


@dataclass(frozen=True)
class PolicyLoss:
    """The loss terms of R rows, one row per (sample, denoising step).

    Attributes:
        loss_R: max of the unclipped and the clipped term; its mean over rows is the loss.
        ratio_R: p_new / p_old, detached.
        clipped_R: True where the clipped term is the larger one, so that the row has no gradient.
    """

    loss_R: torch.Tensor
    ratio_R: torch.Tensor
    clipped_R: torch.Tensor


def policy_loss(
    log_prob_R: torch.Tensor, old_log_prob_R: torch.Tensor, advantage_R: torch.Tensor, clip_range: float
) -> PolicyLoss:
    """Return max(-A r, -A clip(r, 1 - eps, 1 + eps)) with r = exp(log p - log p_old).

    Args:
        log_prob_R: log-probability under the policy being trained (carries gradient).
        old_log_prob_R: log-probability under the policy that drew the sample.
        advantage_R: advantage of each row's sample.
        clip_range: clip range eps.
    """
    ratio_R = torch.exp(log_prob_R - old_log_prob_R)
    unclipped_R = -advantage_R * ratio_R
    clipped_R = -advantage_R * ratio_R.clamp(1 - clip_range, 1 + clip_range)
    return PolicyLoss(torch.maximum(unclipped_R, clipped_R), ratio_R.detach(), clipped_R > unclipped_R)


class GrpoObjective:
    """The `objectives.protocol.Objective` of Flow-GRPO; a row is a (sample, denoising step)."""

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        sampling: SamplingConfig,
        kl_weight: float,
        options: GrpoOptions,
    ) -> None:
        self._policy = policy
        self._kl_weight, self._clip_range = kl_weight, options.clip_range
        self._steps = StochasticSteps(policy, sampler, sampling)

    def before_steps(self, updates: Sequence[Sequence[TrainingSample]]) -> float:
        """Return 0: log-probabilities of the old policy come with the trajectories."""
        return 0.0

    def end(self) -> None:
        """Do nothing, as nothing is kept."""

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every stochastic step of every sample."""
        return self._steps.rows(samples)

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of one batch."""
        device, real = self._policy.model.device, len(rows)
        # The shape is fixed; rows that only pad it have weight 0.
        padded = self._steps.padded(rows)
        weight_R = torch.zeros(len(padded), device=device)
        weight_R[:real] = weight
        inputs = self._steps.inputs(padded)
        advantage_R = torch.tensor([row.sample.advantage for row in padded], device=device)
        reference = None
        if self._kl_weight > 0:
            # Before the policy's own pass: a reference of full training swaps weights in place, which
            # must not touch tensors that a backward pass still needs.
            with torch.no_grad(), self._policy.reference():
                reference = self._steps.transition(inputs)
        policy = self._steps.transition(inputs)
        terms = policy_loss(
            self._steps.log_prob(inputs, policy),
            inputs.old_log_prob_R,
            advantage_R,
            self._clip_range,
        )
        loss = (terms.loss_R * weight_R).sum()
        kl = torch.zeros((), device=device)
        if reference is not None:
            kl = (kl_to_reference(policy, reference) * weight_R).sum()
        (loss + self._kl_weight * kl).backward()
        clipped = float((terms.clipped_R * weight_R).sum())
        fresh = [place for place, row in enumerate(rows) if not row.sample.stale]
        deviation = float((terms.ratio_R[fresh] - 1).abs().max()) if fresh else 0.0
        ratio = float((terms.ratio_R * weight_R).sum())
        ratio_kl = float(((terms.ratio_R - 1 - terms.ratio_R.log()) * weight_R).sum())
        return BatchTerms(float(loss.detach()), float(kl.detach()), clipped, deviation, ratio, ratio_kl)
