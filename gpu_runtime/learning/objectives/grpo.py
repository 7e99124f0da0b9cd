"""Flow-GRPO (arXiv 2505.05470): the clipped policy gradient over the stochastic steps of each sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_runtime.diffusion.sde_step import Transition, kl_to_reference
from gpu_runtime.learning.objectives.configured import ConfiguredObjective
from gpu_runtime.learning.objectives.options import GrpoOptions, GuardOptions
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.objectives.row_loss import RowLoss, policy_loss
from gpu_runtime.learning.objectives.stochastic_steps import StepInputs


class GrpoObjective(ConfiguredObjective[GrpoOptions | GuardOptions]):
    """The `objectives.protocol.Objective` of Flow-GRPO; a row is a (sample, denoising step)."""

    def before_steps(self, samples: Sequence[TrainingSample]) -> float:
        """Return 0: log-probabilities of the old policy come with the trajectories."""
        return 0.0

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
        terms = self._loss(padded, inputs, policy, advantage_R)
        kl = torch.zeros((), device=device)
        if reference is not None:
            kl = (kl_to_reference(policy, reference) * weight_R).sum()
        ((terms.loss_R * weight_R).sum() + self._kl_weight * kl).backward()
        fresh = [place for place, row in enumerate(rows) if not row.sample.stale]
        return terms.batch_terms(weight_R, kl, fresh)

    def _loss(
        self, rows: Sequence[Row], inputs: StepInputs, policy: Transition, advantage_R: torch.Tensor
    ) -> RowLoss:
        """Return the loss terms of a batch of rows."""
        log_prob_R = self._steps.log_prob(inputs, policy)
        return policy_loss(log_prob_R, inputs.old_log_prob_R, advantage_R, self._options.clip_range)
