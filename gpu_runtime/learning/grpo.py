"""The clipped policy-gradient loss of Flow-GRPO (arXiv 2505.05470)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PolicyLoss:
    """Loss terms of R rows, one row a (sample, denoising step).

    Attributes:
        loss_R: max of the unclipped and the clipped term; its mean over rows is the loss.
        ratio_R: p_new / p_old, detached.
        clipped_R: True where the clipped term is the larger, so that the row has no gradient.
    """

    loss_R: torch.Tensor
    ratio_R: torch.Tensor
    clipped_R: torch.Tensor


def policy_loss(
    log_prob_R: torch.Tensor, old_log_prob_R: torch.Tensor, advantage_R: torch.Tensor, clip_range: float
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - eps, 1 + eps)) with r = exp(log p - log p_old).

    Args:
        log_prob_R: under the policy being trained (carries gradient).
        old_log_prob_R: under the policy that drew the sample.
        advantage_R: advantage of each row's sample.
        clip_range: eps.
    """
    ratio_R = torch.exp(log_prob_R - old_log_prob_R)
    unclipped_R = -advantage_R * ratio_R
    clipped_R = -advantage_R * ratio_R.clamp(1 - clip_range, 1 + clip_range)
    return PolicyLoss(torch.maximum(unclipped_R, clipped_R), ratio_R.detach(), clipped_R > unclipped_R)
