"""Diffusion-DPO (arXiv 2311.12908) online: a prompt group's best samples against its worst.

With u = noise - x0, and both images of a pair noised by the same noise at the same level,

    d    = |v - u|^2 - |v_ref - u|^2
    loss = -log sigmoid(beta / 2 (d_loser - d_winner))

This is the paper's loss with velocity errors instead of noise errors, and with constant weights of noise
levels, as in its experiments. The reference policy is the KL's. K is the number of pairs.
See docs/explanation/forward-process.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from gpu_runtime.learning.objectives.base import RowLoss
from gpu_runtime.learning.objectives.noised_images import NoisedImagesObjective, NoisedRows
from gpu_runtime.learning.objectives.options import DpoOptions
from gpu_runtime.learning.objectives.protocol import Row, TrainingSample


def pairs_of(samples: Sequence[TrainingSample], most: int) -> Iterator[tuple[TrainingSample, TrainingSample]]:
    """Yield winner and loser of each pair.

    Args:
        samples: samples of whole prompt groups, one group after another.
        most: largest number of pairs per group; fewer if fewer samples differ in their advantage.
    """
    for _, group in itertools.groupby(samples, lambda sample: sample.request.prompt_id):
        best_first = sorted(group, key=lambda sample: -sample.advantage)
        for winner, loser in zip(best_first[:most], reversed(best_first), strict=False):
            if winner.advantage > loser.advantage:
                yield winner, loser


def dpo_loss(
    velocity_RSC: torch.Tensor, reference_RSC: torch.Tensor, target_RSC: torch.Tensor, beta: float
) -> RowLoss:
    """Return the loss of R = 2 K rows that are a winner, its loser, the next winner, and so on.

    Args:
        velocity_RSC: velocity v of the policy being trained (carries gradient).
        target_RSC: target u = noise - x0 of each row.
        beta: weight of the squared errors, which are means over tokens and channels.

    Returns:
        Loss and margin of each row's pair, so their mean over rows is the mean over pairs.
    """
    error_R = ((velocity_RSC - target_RSC) ** 2).mean(dim=(1, 2))
    moved_R = error_R - ((reference_RSC - target_RSC) ** 2).mean(dim=(1, 2))
    margin_K = beta / 2 * (moved_R[1::2] - moved_R[0::2])
    loss_K = -torch.nn.functional.logsigmoid(margin_K)
    return RowLoss(loss_K.repeat_interleave(2), margin_R=margin_K.detach().repeat_interleave(2))


class DpoObjective(NoisedImagesObjective[DpoOptions]):
    """The `objectives.protocol.Objective` of Diffusion-DPO; two rows are a pair at one noise level.

    Nothing depends on the policy that drew the images, so older samples are like any others. A batch holds
    an even number of rows, so no batch splits a pair.
    """

    _needs_reference = True

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return the rows of all pairs at every noise level, each winner before its loser."""
        return [
            Row(sample, place)
            for pair in pairs_of(samples, self._options.pairs)
            for place in range(self._options.times)
            for sample in pair
        ]

    def _loss(
        self, rows: Sequence[Row], inputs: NoisedRows, policy: torch.Tensor, reference: torch.Tensor | None
    ) -> RowLoss:
        assert reference is not None
        return dpo_loss(policy, reference, inputs.target_RSC, self._options.beta)
