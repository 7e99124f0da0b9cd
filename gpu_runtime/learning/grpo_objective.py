"""Flow-GRPO's objective: the clipped policy gradient over the stochastic steps of each sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.sde_step import kl_to_reference
from gpu_runtime.learning.grpo import policy_loss
from gpu_runtime.learning.objective import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.stochastic_steps import StochasticSteps
from storage.config.run_config import RunConfig


class GrpoObjective:
    """Implements `gpu_runtime.learning.objective.Objective`; a row is a (sample, denoising step)."""

    def __init__(self, policy: Policy, sampler: Sampler, config: RunConfig) -> None:
        self._policy = policy
        self._algorithm = config.algorithm
        self._steps = StochasticSteps(policy, sampler, config)

    def begin(self, updates: Sequence[Sequence[TrainingSample]]) -> None:
        """Nothing to do: log-probabilities of the old policy come with the trajectories."""

    def end(self) -> None:
        """Nothing is kept."""

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Every stochastic step of every sample."""
        return self._steps.rows(samples)

    def backward(self, rows: Sequence[Row], total: float) -> BatchTerms:
        """Add the gradient of one batch."""
        device, real = self._policy.model.device, len(rows)
        # The shape is fixed; rows that only fill it up weigh nothing.
        padded = self._steps.padded(rows)
        weight_R = torch.zeros(len(padded), device=device)
        weight_R[:real] = 1.0 / total
        inputs = self._steps.inputs(padded)
        advantage_R = torch.tensor([row.sample.advantage for row in padded], device=device)
        reference = None
        if self._algorithm.kl_weight > 0:
            # Before the policy's own pass: a reference of full training swaps weights in place, which
            # must not touch tensors that a backward pass still needs.
            with torch.no_grad(), self._policy.reference():
                reference = self._steps.transition(inputs)
        policy = self._steps.transition(inputs)
        terms = policy_loss(
            self._steps.log_prob(inputs, policy),
            inputs.old_log_prob_R,
            advantage_R,
            self._algorithm.clip_range,
        )
        loss = (terms.loss_R * weight_R).sum()
        kl = torch.zeros((), device=device)
        if reference is not None:
            kl = (kl_to_reference(policy, reference) * weight_R).sum()
        (loss + self._algorithm.kl_weight * kl).backward()
        clipped = float((terms.clipped_R * weight_R).sum())
        deviation = float((terms.ratio_R[:real] - 1).abs().max())
        return BatchTerms(float(loss.detach()), float(kl.detach()), clipped, deviation)
