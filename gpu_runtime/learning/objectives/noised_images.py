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

from gpu_runtime.diffusion.noise import NoiseStream, Purpose, normal, uniform
from gpu_runtime.diffusion.sampler import stream_of
from gpu_runtime.learning.objectives.configured import ConfiguredObjective
from gpu_runtime.learning.objectives.options import NoisedImagesOptions
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.objectives.row_loss import RowLoss
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import SampleRequest

Options = TypeVar("Options", bound=NoisedImagesOptions)


class NoisedImagesObjective(ConfiguredObjective[Options], ABC):
    """An objective whose row is a (sample, noise level); a subclass adds the rows and the loss.

    Noise and noise levels are functions of the identity of the sample's prompt group.
    """

    _needs_reference = False
    """True if the loss needs the reference policy, whatever the weight of the KL."""

    @abstractmethod
    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return the rows of samples, in order."""

    @abstractmethod
    def _loss(
        self,
        rows: Sequence[Row],
        velocity_RSC: torch.Tensor,
        target_RSC: torch.Tensor,
        reference_RSC: torch.Tensor | None,
    ) -> RowLoss:
        """Return the loss terms of a batch of rows.

        Args:
            rows: the rows, with those that only pad the batch.
            velocity_RSC: velocity of the policy being trained (carries gradient).
            target_RSC: target u = noise - x0 of each row.
            reference_RSC: velocity of the reference policy, if the loss or the KL needs it.
        """

    def before_steps(self, samples: Sequence[TrainingSample]) -> float:
        """Return the largest |ratio - 1| of one batch of stochastic steps of samples that are not stale."""
        return self._steps.deviation([sample for sample in samples if not sample.stale])

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of one batch."""
        model = self._policy.model
        padded = self._steps.padded(rows)
        noised, sigma, target, conditioning = self._inputs(padded)
        # The shape is fixed; rows that only pad it have weight 0.
        weight_R = torch.zeros(len(padded), device=model.device)
        weight_R[: len(rows)] = weight
        reference = None
        if self._kl_weight > 0 or self._needs_reference:
            # Before the policy's own pass, as in Flow-GRPO.
            with torch.no_grad(), self._policy.reference():
                reference = model.velocity(noised, sigma, conditioning)
        velocity = model.velocity(noised, sigma, conditioning)
        terms = self._loss(padded, velocity, target, reference)
        kl = torch.zeros((), device=model.device)
        if reference is not None:
            kl = (((velocity - reference) ** 2).mean(dim=(1, 2)) * weight_R).sum()
        ((terms.loss_R * weight_R).sum() + self._kl_weight * kl).backward()
        return terms.batch_terms(weight_R, kl)

    def _stream(self, request: SampleRequest) -> NoiseStream:
        """Return the stream of the noise and the noise levels of a sample."""
        return stream_of(request).of_group

    def _inputs(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Conditioning]:
        """Return noised latents, noise level, target velocity and prompt of each row.

        The levels of a row's sample are spread evenly: one in each of `times` equal parts of (0, 1).
        """
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
        return noised.to(device), sigma.to(device), (noise - latents).to(device), conditioning
