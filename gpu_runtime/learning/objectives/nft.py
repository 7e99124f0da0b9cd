"""DiffusionNFT's objective (arXiv 2509.16117): re-noised final images pull the velocity field.

See docs/explanation/forward-process.md.
"""

from __future__ import annotations

import torch

from gpu_runtime.learning.objectives.base import RowLoss
from gpu_runtime.learning.objectives.noised_images import AdvantageWeightedObjective
from gpu_runtime.learning.objectives.options import NftOptions


def nft_loss(
    velocity_RSC: torch.Tensor,
    old_RSC: torch.Tensor,
    target_RSC: torch.Tensor,
    optimality_R: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Return (r |v+ - u|^2 + (1 - r) |v- - u|^2) / beta, a mean over tokens and channels; shape (R,).

    v+ = (1 - beta) v_old + beta v is the implicit good policy, v- = (1 + beta) v_old - beta v the implicit
    bad one. At v = v_old the gradient is 2 (2 r - 1) (v_old - u) for any beta; a smaller beta moves the
    minimum, v_old + (2 r - 1) / beta (u - v_old), further away.

    Args:
        velocity_RSC: velocity of the policy being trained (carries gradient).
        old_RSC: velocity of the policy that training begins with, whichever weights drew the images.
        target_RSC: target u = noise - x0 of each row.
        optimality_R: r in [0, 1]: 1 for the best image, 0 for the worst, a half for an average one.
        beta: strength of the implicit guidance, above 0.
    """
    positive = (1 - beta) * old_RSC + beta * velocity_RSC
    negative = (1 + beta) * old_RSC - beta * velocity_RSC
    good_R = ((positive - target_RSC) ** 2).mean(dim=(1, 2))
    bad_R = ((negative - target_RSC) ** 2).mean(dim=(1, 2))
    return (optimality_R * good_R + (1 - optimality_R) * bad_R) / beta


class NftObjective(AdvantageWeightedObjective[NftOptions]):
    """The `objectives.protocol.Objective` of DiffusionNFT; a row is a (sample, noise level)."""

    def _kept(self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor) -> torch.Tensor:
        return velocity_RSC

    def _weighted_loss(
        self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor, old: torch.Tensor, share_R: torch.Tensor
    ) -> RowLoss:
        return RowLoss(nft_loss(velocity_RSC, old, target_RSC, (1 + share_R) / 2, self._options.beta))
