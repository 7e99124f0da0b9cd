"""The loss terms of rows, and the clipped policy gradient that several objectives share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_runtime.learning.objectives.protocol import BatchTerms


@dataclass(frozen=True)
class RowLoss:
    """The loss terms of R rows.

    Attributes:
        loss_R: loss of each row (carries gradient); its mean over rows is the loss.
        ratio_R: p_new / p_old, detached; None for objectives without a ratio.
        clipped_R: True where the clipped term is the larger one, so that the row has no gradient; None for
            objectives without a ratio.
        margin_R: by how much the winner of each row's pair is preferred, detached; None for objectives
            without pairs.
    """

    loss_R: torch.Tensor
    ratio_R: torch.Tensor | None = None
    clipped_R: torch.Tensor | None = None
    margin_R: torch.Tensor | None = None

    def batch_terms(
        self, weight_R: torch.Tensor, kl: torch.Tensor, checked: Sequence[int] = ()
    ) -> BatchTerms:
        """Return the sums over a batch's rows.

        Args:
            weight_R: weight of each row; 0 for rows that only pad the batch.
            kl: weighted sum of the distances from the reference policy.
            checked: indices of the rows whose ratio should be 1 at the first update.
        """
        loss, distance = float((self.loss_R * weight_R).sum().detach()), float(kl.detach())
        if self.margin_R is not None:
            right_R = (self.margin_R.sign() + 1) / 2
            right, margin = (float((value_R * weight_R).sum()) for value_R in (right_R, self.margin_R))
            return BatchTerms(loss, distance, 0.0, 0.0, pair_accuracy=right, pair_margin=margin)
        if self.ratio_R is None or self.clipped_R is None:
            return BatchTerms(loss, distance, 0.0, 0.0)
        deviation = float((self.ratio_R[checked] - 1).abs().max()) if checked else 0.0
        clipped = float((self.clipped_R * weight_R).sum())
        ratio = float((self.ratio_R * weight_R).sum())
        ratio_kl = float(((self.ratio_R - 1 - self.ratio_R.log()) * weight_R).sum())
        return BatchTerms(loss, distance, clipped, deviation, ratio, ratio_kl)


def policy_loss(
    log_prob_R: torch.Tensor, old_log_prob_R: torch.Tensor, advantage_R: torch.Tensor, clip_range: float
) -> RowLoss:
    """Return max(-A r, -A clip(r, 1 - eps, 1 + eps)) with r = exp(log p - log p_old).

    Args:
        log_prob_R: log-probability under the policy being trained (carries gradient).
        old_log_prob_R: log-probability under the policy that drew the sample.
        clip_range: clip range eps.
    """
    ratio_R = torch.exp(log_prob_R - old_log_prob_R)
    unclipped_R = -advantage_R * ratio_R
    clipped_R = -advantage_R * ratio_R.clamp(1 - clip_range, 1 + clip_range)
    return RowLoss(torch.maximum(unclipped_R, clipped_R), ratio_R.detach(), clipped_R > unclipped_R)
