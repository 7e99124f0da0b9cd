"""The contrastive forward-process loss of DiffusionNFT (arXiv 2509.16117), in our shapes.

Instead of the likelihood of the sampler's noise draws, the velocity field itself is regressed: on
noised final images, towards good ones and away from bad ones. Shapes: R rows, S tokens, C channels.
"""

from __future__ import annotations

import torch


def nft_loss(
    velocity_RSC: torch.Tensor,
    old_RSC: torch.Tensor,
    target_RSC: torch.Tensor,
    optimality_R: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """(r |v+ - u|^2 + (1 - r) |v- - u|^2) / beta, a mean over tokens and channels; shape (R,).

    v+ = (1 - beta) v_old + beta v is what the policy is if it is good, v- = (1 + beta) v_old - beta v
    what a bad one would then be. At v = v_old the gradient is 2 (2 r - 1) (v_old - u), whatever beta
    is; the smaller beta, the further the minimum, v_old + (2 r - 1) / beta (u - v_old), lies away.

    Args:
        velocity_RSC: of the policy being trained (carries gradient).
        old_RSC: of the policy that drew the images.
        target_RSC: u = noise - x0 of each row.
        optimality_R: r in [0, 1]: 1 for the best image, 0 for the worst, a half for a usual one.
        beta: strength of the implicit guidance, above 0.
    """
    positive = (1 - beta) * old_RSC + beta * velocity_RSC
    negative = (1 + beta) * old_RSC - beta * velocity_RSC
    good_R = ((positive - target_RSC) ** 2).mean(dim=(1, 2))
    bad_R = ((negative - target_RSC) ** 2).mean(dim=(1, 2))
    return (optimality_R * good_R + (1 - optimality_R) * bad_R) / beta
