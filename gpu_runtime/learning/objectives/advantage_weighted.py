"""Objectives that weigh each noised image by its advantage and measure the policy from the old one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch

from gpu_runtime.diffusion.noise import NoiseStream
from gpu_runtime.diffusion.sampler import stream_of
from gpu_runtime.learning.objectives.noised_images import NoisedImagesObjective
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP, AdvantageWeightedOptions
from gpu_runtime.learning.objectives.protocol import Row, TrainingSample
from gpu_runtime.learning.objectives.row_loss import RowLoss
from gpu_runtime.scheduling.requests import SampleRequest

Options = TypeVar("Options", bound=AdvantageWeightedOptions)


class AdvantageWeightedObjective(NoisedImagesObjective[Options]):
    """An objective whose row is a (sample, noise level); a subclass adds the loss."""

    _old: dict[tuple[SampleRequest, int], torch.Tensor]

    @abstractmethod
    def _kept(self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor) -> torch.Tensor:
        """Return what the loss needs of the old policy, a tensor for each row: shape (R, ...)."""

    @abstractmethod
    def _weighted_loss(
        self,
        velocity_RSC: torch.Tensor,
        target_RSC: torch.Tensor,
        old: torch.Tensor,
        share_R: torch.Tensor,
    ) -> RowLoss:
        """Return the loss terms of a batch of rows.

        Args:
            velocity_RSC: velocity of the policy being trained (carries gradient).
            target_RSC: target u = noise - x0 of each row.
            old: what `_kept` returned of the old policy.
            share_R: advantage of each row's sample over the largest one, in [-1, 1].
        """

    @torch.no_grad()
    def keep(self, rows: Sequence[Row]) -> None:
        """Keep what the loss of a later update's rows needs of the old policy, which the policy still is."""
        noised, sigma, target, conditioning = self._inputs(self._steps.padded(rows))
        kept = self._kept(self._policy.model.velocity(noised, sigma, conditioning), target)
        for row, old in zip(rows, kept, strict=False):
            self._old[row.sample.request, row.place] = old

    def end(self) -> None:
        """Forget what was kept of the old policy, which may take much memory for large latents."""
        self._old = {}

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every noise level of every sample."""
        return [Row(sample, place) for sample in samples for place in range(self._options.times)]

    def _loss(
        self,
        rows: Sequence[Row],
        velocity_RSC: torch.Tensor,
        target_RSC: torch.Tensor,
        reference_RSC: torch.Tensor | None,
    ) -> RowLoss:
        if self._old:  # of a later update
            old = torch.stack([self._old[row.sample.request, row.place] for row in rows])
        else:
            old = self._kept(velocity_RSC, target_RSC).detach()
        advantage_R = torch.tensor([row.sample.advantage for row in rows], device=velocity_RSC.device)
        return self._weighted_loss(velocity_RSC, target_RSC, old, (advantage_R / ADVANTAGE_CLIP).clamp(-1, 1))

    def _stream(self, request: SampleRequest) -> NoiseStream:
        return super()._stream(request) if self._options.shared else stream_of(request)
