"""Advantage-weighted matching (AWM, arXiv 2509.25050): the loss of pretraining, weighted by advantages.

See docs/explanation/forward-process.md.
"""

from __future__ import annotations

import torch

from gpu_runtime.learning.objectives.base import RowLoss, policy_loss
from gpu_runtime.learning.objectives.noised_images import AdvantageWeightedObjective
from gpu_runtime.learning.objectives.options import AwmOptions


def matching_log_prob(velocity_RSC: torch.Tensor, target_RSC: torch.Tensor) -> torch.Tensor:
    """Return -|v - u|^2, a mean over tokens and channels, as a proxy for the image's log p; shape (R,).

    Args:
        target_RSC: target u = noise - x0 of each row.
    """
    return -((velocity_RSC - target_RSC) ** 2).mean(dim=(1, 2))


class AwmObjective(AdvantageWeightedObjective[AwmOptions]):
    """The `objectives.protocol.Objective` of AWM; a row is a (sample, noise level).

    The ratio is relative to the policy that training begins with, whichever weights drew the image.
    """

    def _kept(self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor) -> torch.Tensor:
        return matching_log_prob(velocity_RSC, target_RSC)

    def _weighted_loss(
        self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor, old: torch.Tensor, share_R: torch.Tensor
    ) -> RowLoss:
        log_prob_R = matching_log_prob(velocity_RSC, target_RSC)
        return policy_loss(log_prob_R, old, share_R, self._options.clip_range)
