"""DiffusionNFT's objective (arXiv 2509.16117): final images, noised again, pull the velocity field.

The loss needs neither trajectory nor log-probability. Still, one batch of stochastic steps is recomputed
before an iteration's first update, to show that the weights are those that drew the images.
See docs/explanation/forward-process.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu_runtime.diffusion.noise import Purpose, normal, uniform
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP, NftOptions
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.objectives.stochastic_steps import StochasticSteps
from gpu_runtime.learning.policy import Policy
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import SampleRequest
from storage.config.run_config import SamplingConfig


def nft_loss(
    velocity_RSC: torch.Tensor,
    old_RSC: torch.Tensor,
    target_RSC: torch.Tensor,
    optimality_R: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Return (r |v+ - u|^2 + (1 - r) |v- - u|^2) / beta, a mean over tokens and channels; shape (R,).

    v+ = (1 - beta) v_old + beta v is the implicit good policy, v- = (1 + beta) v_old - beta v the implicit
    bad one. At v = v_old the gradient is 2 (2 r - 1) (v_old - u), whatever beta is; the smaller beta,
    the further away is the minimum, v_old + (2 r - 1) / beta (u - v_old).

    Args:
        velocity_RSC: velocity of the policy being trained (carries gradient).
        old_RSC: velocity of the policy that drew the images.
        target_RSC: target u = noise - x0 of each row.
        optimality_R: r in [0, 1]: 1 for the best image, 0 for the worst, a half for an average one.
        beta: strength of the implicit guidance, above 0.
    """
    positive = (1 - beta) * old_RSC + beta * velocity_RSC
    negative = (1 + beta) * old_RSC - beta * velocity_RSC
    good_R = ((positive - target_RSC) ** 2).mean(dim=(1, 2))
    bad_R = ((negative - target_RSC) ** 2).mean(dim=(1, 2))
    return (optimality_R * good_R + (1 - optimality_R) * bad_R) / beta


class NftObjective:
    """The `objectives.protocol.Objective` of DiffusionNFT; a row is a (sample, noise level).

    Noise and noise levels are functions of the sample's identity, or with `shared` of its prompt group's.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        sampling: SamplingConfig,
        kl_weight: float,
        options: NftOptions,
    ) -> None:
        self._policy = policy
        self._sampler = sampler
        self._batch_size, self._kl_weight = sampling.batch_size, kl_weight
        self._options = options
        self._steps = StochasticSteps(policy, sampler, sampling)
        self._old: dict[tuple[SampleRequest, int], torch.Tensor] = {}

    def before_steps(self, updates: Sequence[Sequence[TrainingSample]]) -> float:
        """Keep the old policy's velocities for later updates, while the policy is still the old one."""
        fresh = [sample for samples in updates for sample in samples if not sample.stale]
        size = self._batch_size
        for samples in updates[1:]:
            rows = self.rows(samples)
            for first in range(0, len(rows), size):
                batch = rows[first : first + size]
                noised, sigma, _, conditioning = self._inputs(self._steps.padded(batch))
                with torch.no_grad():
                    velocity = self._policy.model.velocity(noised, sigma, conditioning)
                for row, old in zip(batch, velocity, strict=False):
                    self._old[row.sample.request, row.place] = old
        return self._steps.deviation(fresh)

    def end(self) -> None:
        """Forget the old policy's velocities, which take much memory for large latents."""
        self._old = {}

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every noise level of every sample."""
        return [Row(sample, place) for sample in samples for place in range(self._options.times)]

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of one batch; nothing is clipped, and there is no ratio."""
        model = self._policy.model
        padded = self._steps.padded(rows)
        noised, sigma, target, conditioning = self._inputs(padded)
        # The shape is fixed; rows that only pad it have weight 0.
        weight_R = torch.zeros(len(padded), device=model.device)
        weight_R[: len(rows)] = weight
        reference = None
        if self._kl_weight > 0:
            # Before the policy's own pass, as in the other objective.
            with torch.no_grad(), self._policy.reference():
                reference = model.velocity(noised, sigma, conditioning)
        velocity = model.velocity(noised, sigma, conditioning)
        old = velocity.detach()
        if self._old:  # of a later update
            old = torch.stack([self._old[row.sample.request, row.place] for row in padded])
        advantage_R = torch.tensor([row.sample.advantage for row in padded], device=model.device)
        share_R = (advantage_R / ADVANTAGE_CLIP).clamp(-1, 1)
        loss_R = nft_loss(velocity, old, target, (1 + share_R) / 2, self._options.beta)
        loss = (loss_R * weight_R).sum()
        kl = torch.zeros((), device=model.device)
        if reference is not None:
            kl = (((velocity - reference) ** 2).mean(dim=(1, 2)) * weight_R).sum()
        (loss + self._kl_weight * kl).backward()
        return BatchTerms(float(loss.detach()), float(kl.detach()), 0.0, 0.0)

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
