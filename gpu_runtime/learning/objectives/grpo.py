"""Flow-GRPO (arXiv 2505.05470): the clipped policy gradient over the stochastic steps of each sample.

GRPO-Guard (arXiv 2510.22319) normalises the ratio so that it is clipped equally on both sides and at every
step; see docs/explanation/flow-grpo.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_runtime.diffusion.sde_step import Transition, kl_to_reference
from gpu_runtime.learning.objectives.base import ConfiguredObjective, RowLoss, StepInputs, policy_loss
from gpu_runtime.learning.objectives.options import GrpoOptions, GuardOptions
from gpu_runtime.learning.objectives.protocol import Row, TrainingSample


class GrpoObjective(ConfiguredObjective[GrpoOptions | GuardOptions, StepInputs, Transition]):
    """The `objectives.protocol.Objective` of Flow-GRPO; a row is a (sample, denoising step)."""

    def before_steps(self, samples: Sequence[TrainingSample]) -> float:
        """Return 0: log-probabilities of the old policy come with the trajectories."""
        return 0.0

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every stochastic step of every sample."""
        return self._steps.rows(samples)

    def _inputs(self, rows: Sequence[Row]) -> StepInputs:
        return self._steps.inputs(rows)

    def _predict(self, inputs: StepInputs) -> Transition:
        return self._steps.transition(inputs)

    def _distance(self, policy: Transition, reference: Transition) -> torch.Tensor:
        return kl_to_reference(policy, reference)

    def _checked(self, rows: Sequence[Row]) -> list[int]:
        return [index for index, row in enumerate(rows) if not row.sample.stale]

    def _loss(
        self, rows: Sequence[Row], inputs: StepInputs, policy: Transition, reference: Transition | None
    ) -> RowLoss:
        log_prob_R = self._steps.log_prob(inputs, policy)
        return policy_loss(
            log_prob_R, inputs.old_log_prob_R, _advantages(rows, policy), self._options.clip_range
        )


class GuardedGrpoObjective(GrpoObjective):
    """The `objectives.protocol.Objective` of GRPO-Guard; a row is a (sample, denoising step).

    The old policy's mean follows from the step's end and its noise, a function of the sample's identity, so
    nothing is kept for it, and samples that older weights drew are measured from those weights.
    """

    def _loss(
        self, rows: Sequence[Row], inputs: StepInputs, policy: Transition, reference: Transition | None
    ) -> RowLoss:
        scale_R = policy.scale_B
        old_RSC = inputs.after_RSC - scale_R[:, None, None] * self._steps.noise(rows)
        return guarded_loss(
            self._steps.log_prob(inputs, policy) - inputs.old_log_prob_R,
            policy.mean_BSC - old_RSC,
            scale_R,
            inputs.times.sigma_B - inputs.times.sigma_next_B,
            _advantages(rows, policy),
            self._options.clip_range,
        )


def guarded_loss(
    log_ratio_R: torch.Tensor,
    moved_RSC: torch.Tensor,
    scale_R: torch.Tensor,
    length_R: torch.Tensor,
    advantage_R: torch.Tensor,
    clip_range: float,
) -> RowLoss:
    """Return the clipped loss of the normalised ratio, over the length of the step.

    With d the shift of the step's mean and b its deviation, log p - log p_old is mean(d noise) / b
    - mean(d^2) / (2 b^2): below 0 on average, and more spread the smaller b is. Without its second term, and
    times b, it is mean(d noise), whose mean is 0 and which does not depend on the step's deviation.

    Args:
        log_ratio_R: log p - log p_old (carries gradient).
        moved_RSC: mean of the step minus that of the old policy (carries gradient).
        scale_R: standard deviation of the step.
        length_R: -dt of the step, which scales its mean and thus its gradient.

    Returns:
        The loss terms; the ratio is p / p_old itself, not normalised.
    """
    bias_R = (moved_RSC**2).mean(dim=(1, 2)) / (2 * scale_R**2)
    normalised_R = (log_ratio_R + bias_R) * scale_R
    terms = policy_loss(normalised_R, torch.zeros_like(normalised_R), advantage_R, clip_range)
    return RowLoss(terms.loss_R / length_R, torch.exp(log_ratio_R.detach()), terms.clipped_R)


def _advantages(rows: Sequence[Row], policy: Transition) -> torch.Tensor:
    return torch.tensor([row.sample.advantage for row in rows], device=policy.s_B.device)
