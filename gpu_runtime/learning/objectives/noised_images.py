"""Objectives on final images that are noised again, which need neither trajectory nor likelihood.

Still, one batch of stochastic steps is recomputed before an iteration's first update, to show that the
weights are those that drew the images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch

from gpu_runtime.diffusion.noise import Purpose, normal, uniform
from gpu_runtime.diffusion.sampler import stream_of
from gpu_runtime.learning.objectives.configured import ConfiguredObjective
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP, NoisedImagesOptions
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.objectives.row_loss import RowLoss
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import SampleRequest

Options = TypeVar("Options", bound=NoisedImagesOptions)


class NoisedImagesObjective(ConfiguredObjective[Options], ABC):
    """An objective whose row is a (sample, noise level); a subclass adds the loss.

    Noise and noise levels are functions of the sample's identity, or with `shared` of its prompt group's.
    """

    _old: dict[tuple[SampleRequest, int], torch.Tensor]

    @abstractmethod
    def _kept(self, velocity_RSC: torch.Tensor, target_RSC: torch.Tensor) -> torch.Tensor:
        """Return what the loss needs of the old policy, a tensor for each row: shape (R, ...)."""

    @abstractmethod
    def _loss(
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

    def before_steps(self, updates: Sequence[Sequence[TrainingSample]]) -> float:
        """Keep what later updates need of the old policy, while the policy is still the old one."""
        fresh = [sample for samples in updates for sample in samples if not sample.stale]
        size = self._batch_size
        for samples in updates[1:]:
            rows = self.rows(samples)
            for first in range(0, len(rows), size):
                batch = rows[first : first + size]
                noised, sigma, target, conditioning = self._inputs(self._steps.padded(batch))
                with torch.no_grad():
                    kept = self._kept(self._policy.model.velocity(noised, sigma, conditioning), target)
                for row, old in zip(batch, kept, strict=False):
                    self._old[row.sample.request, row.place] = old
        return self._steps.deviation(fresh)

    def end(self) -> None:
        """Forget what was kept of the old policy, which may take much memory for large latents."""
        self._old = {}

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every noise level of every sample."""
        return [Row(sample, place) for sample in samples for place in range(self._options.times)]

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of one batch."""
        model = self._policy.model
        padded = self._steps.padded(rows)
        noised, sigma, target, conditioning = self._inputs(padded)
        # The shape is fixed; rows that only pad it have weight 0.
        weight_R = torch.zeros(len(padded), device=model.device)
        weight_R[: len(rows)] = weight
        reference = None
        if self._kl_weight > 0:
            # Before the policy's own pass, as in Flow-GRPO.
            with torch.no_grad(), self._policy.reference():
                reference = model.velocity(noised, sigma, conditioning)
        velocity = model.velocity(noised, sigma, conditioning)
        if self._old:  # of a later update
            old = torch.stack([self._old[row.sample.request, row.place] for row in padded])
        else:
            old = self._kept(velocity, target).detach()
        advantage_R = torch.tensor([row.sample.advantage for row in padded], device=model.device)
        terms = self._loss(velocity, target, old, (advantage_R / ADVANTAGE_CLIP).clamp(-1, 1))
        kl = torch.zeros((), device=model.device)
        if reference is not None:
            kl = (((velocity - reference) ** 2).mean(dim=(1, 2)) * weight_R).sum()
        ((terms.loss_R * weight_R).sum() + self._kl_weight * kl).backward()
        return terms.batch_terms(weight_R, kl)

    def _inputs(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Conditioning]:
        """Return noised latents, noise level, target velocity and prompt of each row.

        The levels of a row's sample are spread evenly: one in each of `times` equal parts of (0, 1).
        """
        model, times = self._policy.model, self._options.times
        latents = torch.from_numpy(np.stack([row.sample.latents_SC for row in rows]))
        noise, sigma = torch.empty_like(latents), torch.empty(len(rows), dtype=torch.float64)
        for place in sorted({row.place for row in rows}):
            chosen = [index for index, row in enumerate(rows) if row.place == place]
            streams = [stream_of(rows[index].sample.request) for index in chosen]
            if self._options.shared:
                streams = [stream.of_group for stream in streams]
            noise[chosen] = normal(streams, Purpose.TRAIN_NOISE, place, model.latent_shape)
            sigma[chosen] = (place + uniform(streams, Purpose.TRAIN_TIME, place)) / times
        # The largest float32 below 1: rounding must not reach the open end.
        sigma = sigma.clamp(max=1 - 2**-24).to(torch.float32)
        noised = (1 - sigma[:, None, None]) * latents + sigma[:, None, None] * noise
        conditioning = self._sampler.conditioning(row.sample.request for row in rows)
        device = model.device
        return noised.to(device), sigma.to(device), (noise - latents).to(device), conditioning
