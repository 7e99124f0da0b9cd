"""Flow-GRPO's objective: the clipped policy gradient over the stochastic steps of each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.sde_step import StepTimes, Transition, kl_to_reference, log_prob, transition
from gpu_runtime.learning.grpo import policy_loss
from gpu_runtime.learning.objective import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.policy import Policy
from storage.config import RunConfig


class GrpoObjective:
    """Implements `gpu_runtime.learning.objective.Objective`; a row is a (sample, denoising step)."""

    def __init__(self, policy: Policy, sampler: Sampler, config: RunConfig) -> None:
        self._policy = policy
        self._sampler = sampler
        self._config = config

    def begin(self, updates: Sequence[Sequence[TrainingSample]]) -> None:
        """Nothing to do: log-probabilities of the old policy come with the trajectories."""

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Every stochastic step of every sample."""
        return [Row(sample, place) for sample in samples for place in range(len(sample.trajectory.step_W))]

    def backward(self, rows: Sequence[Row], total: int) -> BatchTerms:
        """Add the gradient of one batch; `deviation` is the largest |ratio - 1|."""
        config, device = self._config, self._policy.model.device
        real = len(rows)
        # The shape is fixed; rows that only fill it up weigh nothing.
        padded = [*rows, *[rows[0]] * (config.sampling.batch_size - real)]
        weight_R = torch.zeros(len(padded), device=device)
        weight_R[:real] = 1.0 / total
        before, after, old, advantage = _tensors(padded, device)
        conditioning = self._sampler.conditioning(row.sample.request.prompt for row in padded)
        step = torch.tensor([int(row.sample.trajectory.step_W[row.place]) for row in padded])
        times = StepTimes.at(self._sampler.schedule(rows[0].sample.request), step).to(device)
        noise_level = torch.full((len(padded),), config.sampling.noise_level, device=device)

        def step_policy() -> Transition:
            velocity = self._policy.model.velocity(before, times.sigma_B, conditioning)
            return transition(config.sampling.sde, before, velocity, times, noise_level)

        reference = None
        if config.algorithm.kl_weight > 0:
            # Before the policy's own pass: a reference of full training swaps weights in place, which
            # must not touch tensors that a backward pass still needs.
            with torch.no_grad(), self._policy.reference():
                reference = step_policy()
        policy = step_policy()
        terms = policy_loss(
            log_prob(config.sampling.sde, after, policy), old, advantage, config.algorithm.clip_range
        )
        loss = (terms.loss_R * weight_R).sum()
        kl = torch.zeros((), device=device)
        if reference is not None:
            kl = (kl_to_reference(policy, reference) * weight_R).sum()
        (loss + config.algorithm.kl_weight * kl).backward()
        clipped = float((terms.clipped_R * weight_R).sum())
        deviation = float((terms.ratio_R[:real] - 1).abs().max())
        return BatchTerms(float(loss.detach()), float(kl.detach()), clipped, deviation)


def _tensors(
    rows: Sequence[Row], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents before and after, old log-probability and advantage of each row."""
    trajectories = [(row.sample.trajectory, row.place) for row in rows]
    before = np.stack([trajectory.before_WSC[place] for trajectory, place in trajectories])
    after = np.stack([trajectory.after_WSC[place] for trajectory, place in trajectories])
    old = np.array([trajectory.log_prob_W[place] for trajectory, place in trajectories], np.float32)
    advantage = np.array([row.sample.advantage for row in rows], np.float32)
    return (
        torch.from_numpy(before).to(device),
        torch.from_numpy(after).to(device),
        torch.from_numpy(old).to(device),
        torch.from_numpy(advantage).to(device),
    )
