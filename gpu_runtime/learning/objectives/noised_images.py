"""Objectives on re-noised final images, which need neither trajectory nor likelihood.

Still, one batch of stochastic steps is recomputed before an iteration's first update, to verify that these
weights drew the images.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from gpu_runtime.diffusion.noise import NoiseStream, Purpose, normal, uniform
from gpu_runtime.diffusion.sampler import stream_of
from gpu_runtime.learning.objectives.base import ConfiguredObjective, RowLoss
from gpu_runtime.learning.objectives.options import (
    ADVANTAGE_CLIP,
    AdvantageWeightedOptions,
    NoisedImagesOptions,
)
from gpu_runtime.learning.objectives.protocol import Row, TrainingSample
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import SampleRequest

Options = TypeVar("Options", bound=NoisedImagesOptions)
Weighted = TypeVar("Weighted", bound=AdvantageWeightedOptions)


class NoisedRows(NamedTuple):
    """Noised latents, noise level, target velocity u = noise - x0 and prompt of R rows."""

    noised_RSC: torch.Tensor
    sigma_R: torch.Tensor
    target_RSC: torch.Tensor
    conditioning: Conditioning


class NoisedImagesObjective(ConfiguredObjective[Options, NoisedRows, torch.Tensor]):
    """An objective whose row is a (sample, noise level); a subclass adds the rows and the loss.

    Noise and noise levels are functions of the identity of the sample's prompt group. The policy predicts
    the velocity, shape (R, S, C).
    """

    def before_steps(self, samples: Sequence[TrainingSample]) -> float:
        """Return the largest |ratio - 1| of a batch of stochastic steps of samples that are not stale."""
        return self._steps.deviation([sample for sample in samples if not sample.stale])

    def _predict(self, inputs: NoisedRows) -> torch.Tensor:
        return self._policy.model.velocity(inputs.noised_RSC, inputs.sigma_R, inputs.conditioning)

    def _distance(self, policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        return ((policy - reference) ** 2).mean(dim=(1, 2))

    def _stream(self, request: SampleRequest) -> NoiseStream:
        """Return the stream of the noise and the noise levels of a sample."""
        return stream_of(request).of_group

    def _inputs(self, rows: Sequence[Row]) -> NoisedRows:
        """Return the noised rows: a sample has one level in each of `times` equal parts of (0, 1)."""
        model, times = self._policy.model, self._options.times
        latents = torch.from_numpy(np.stack([row.sample.latents_SC for row in rows]))
        noise, sigma = torch.empty_like(latents), torch.empty(len(rows), dtype=torch.float64)
        for place in sorted({row.place for row in rows}):
            chosen = [index for index, row in enumerate(rows) if row.place == place]
            streams = [self._stream(rows[index].sample.request) for index in chosen]
            noise[chosen] = normal(streams, Purpose.TRAIN_NOISE, place, model.latent_shape)
            sigma[chosen] = (place + uniform(streams, Purpose.TRAIN_TIME, place)) / times
        # The largest float32 below 1: rounding must not reach the open end.
        sigma = sigma.clamp(max=1 - 2**-24).to(torch.float32)
        noised = (1 - sigma[:, None, None]) * latents + sigma[:, None, None] * noise
        conditioning = self._sampler.conditioning(row.sample.request for row in rows)
        device = model.device
        return NoisedRows(noised.to(device), sigma.to(device), (noise - latents).to(device), conditioning)


class AdvantageWeightedObjective(NoisedImagesObjective[Weighted]):
    """An objective that weights noised images by advantage, relative to the old policy."""

    _old: dict[tuple[SampleRequest, int], torch.Tensor]

    @abstractmethod
    def _kept(self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor) -> torch.Tensor:
        """Return what the loss needs from the old policy, a tensor for each row: shape (R, ...)."""

    @abstractmethod
    def _weighted_loss(
        self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor, old: torch.Tensor, share_R: torch.Tensor
    ) -> RowLoss:
        """Return the loss terms of a batch of rows.

        Args:
            velocity_RSC: velocity of the policy being trained (carries gradient).
            old: result of `_kept` for the old policy.
            share_R: advantage of each row's sample over the largest one, in [-1, 1].
        """

    @torch.no_grad()
    def keep(self, rows: Sequence[Row]) -> None:
        """Keep what later updates' losses need from the old policy, while the policy still is the old one."""
        inputs = self._inputs(self._steps.padded(rows))
        # On the CPU: an update's velocities would take gigabytes on a device.
        kept = self._kept(self._predict(inputs), inputs.target_RSC).cpu()
        for row, old in zip(rows, kept, strict=False):
            self._old[row.sample.request, row.place] = old

    def end(self) -> None:
        """Forget what was kept from the old policy, which may take much memory for large latents."""
        self._old = {}

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every noise level of every sample."""
        return [Row(sample, place) for sample in samples for place in range(self._options.times)]

    def _loss(
        self, rows: Sequence[Row], inputs: NoisedRows, policy: torch.Tensor, reference: torch.Tensor | None
    ) -> RowLoss:
        if self._old:  # of a later update
            old = torch.stack([self._old[row.sample.request, row.place] for row in rows]).to(policy.device)
        else:
            old = self._kept(policy, inputs.target_RSC).detach()
        advantage_R = torch.tensor([row.sample.advantage for row in rows], device=policy.device)
        share_R = (advantage_R / ADVANTAGE_CLIP).clamp(-1, 1)
        return self._weighted_loss(policy, inputs.target_RSC, old, share_R)

    def _stream(self, request: SampleRequest) -> NoiseStream:
        return super()._stream(request) if self._options.shared else stream_of(request)
