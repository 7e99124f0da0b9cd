"""The optimiser step of Flow-GRPO: from trajectories and advantages to new weights.

Determinism: rows are ordered by the samples' identity and computed in batches of the sampler's
fixed shape, so the same trajectories give the same weights to the bit, and the log-probabilities
of an iteration's first update equal those of the rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_runtime.diffusion.sampler import Sampler, Trajectory
from gpu_runtime.diffusion.sde_step import StepTimes, Transition, kl_to_reference, log_prob, transition
from gpu_runtime.learning.ema import MovingAverage
from gpu_runtime.learning.grpo import policy_loss
from gpu_runtime.learning.policy import Policy
from gpu_runtime.scheduling.requests import SampleRequest
from storage.config import RunConfig
from storage.errors import TrainingError


@dataclass(frozen=True)
class TrainingSample:
    """One kept sample of a group that has variance."""

    request: SampleRequest
    trajectory: Trajectory
    advantage: float


@dataclass(frozen=True)
class TrainingReport:
    """What one iteration's training did.

    Attributes:
        training_steps: optimiser steps taken; 0 where no group had variance.
        loss, kl, clip_share, gradient_norm: means over the iteration's updates.
        ratio_deviation: largest |ratio - 1| at the first update, before any weight changed.
    """

    training_steps: int
    loss: float
    kl: float
    clip_share: float
    gradient_norm: float
    ratio_deviation: float


@dataclass(frozen=True)
class _Row:
    """One stochastic denoising step of one sample."""

    sample: TrainingSample
    place: int


class Trainer:
    """Owns the optimiser and the moving average of a policy.

    Args:
        policy: the weights to train.
        sampler: gives conditioning and schedule, the same as in the rollout.
        config: the run's configuration.
    """

    def __init__(self, policy: Policy, sampler: Sampler, config: RunConfig) -> None:
        self.policy = policy
        self._sampler = sampler
        self._config = config
        settings = config.optimizer
        self._weights = list(policy.trained.values())
        self.optimizer = torch.optim.AdamW(
            self._weights,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self.average = MovingAverage(policy.state(), settings.ema_decay, settings.ema_interval)

    def train(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Take the iteration's training steps.

        Args:
            samples: samples with non-zero variance in their group, in any order.

        Raises:
            TrainingError: if an advantage is not finite or the first update's ratio is off by more
                than the tolerance (no weight has changed then), or if a gradient is not finite (the
                updates before it stay; a run goes back to its checkpoint).
        """
        ordered = sorted(samples, key=lambda sample: sample.request)
        if not all(math.isfinite(sample.advantage) for sample in ordered):
            raise TrainingError("an advantage is not finite; the rewards of its group are broken")
        updates = _split_by_prompt(ordered, self._config.algorithm.updates_per_iteration)
        sums = np.zeros(4)
        deviation = 0.0
        for index, chosen in enumerate(updates):
            loss, kl, clipped, off = self._accumulate(chosen)
            if index == 0:
                deviation = off
                self._check_ratio(deviation)
            norm = self._apply()
            sums += (loss, kl, clipped, norm)
        loss, kl, clipped, norm = sums / max(len(updates), 1)
        return TrainingReport(len(updates), float(loss), float(kl), float(clipped), float(norm), deviation)

    def _check_ratio(self, deviation: float) -> None:
        tolerance = self._config.algorithm.ratio_tolerance
        if not deviation <= tolerance:
            self.optimizer.zero_grad()
            raise TrainingError(
                f"probability ratio at the first update is off by {deviation:.3g}, above "
                f"algorithm.ratio_tolerance={tolerance:.3g}: rollout and training do not compute the same "
                "policy (other weights, precision or batch shape); fix that, or raise the tolerance"
            )

    def _accumulate(self, samples: Sequence[TrainingSample]) -> tuple[float, float, float, float]:
        """Gradients of one update's mean loss: (loss, kl, share clipped, largest |ratio - 1|)."""
        rows = [_Row(sample, place) for sample in samples for place in range(len(sample.trajectory.step_W))]
        size = self._config.sampling.batch_size
        totals = np.zeros(3)
        off = 0.0
        for first in range(0, len(rows), size):
            loss, kl, clipped, deviation = self._batch(rows[first : first + size], len(rows))
            totals += (loss, kl, clipped)
            # max() would swallow a NaN, which must reach the check.
            off = deviation if math.isnan(deviation) else max(off, deviation)
        return float(totals[0]), float(totals[1]), float(totals[2]), off

    def _batch(self, rows: Sequence[_Row], total: int) -> tuple[float, float, float, float]:
        config, device = self._config, self.policy.model.device
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
            velocity = self.policy.model.velocity(before, times.sigma_B, conditioning)
            return transition(config.sampling.sde, before, velocity, times, noise_level)

        reference = None
        if config.algorithm.kl_weight > 0:
            # Before the policy's own pass: a reference of full training swaps weights in place, which
            # must not touch tensors that a backward pass still needs.
            with torch.no_grad(), self.policy.reference():
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
        return float(loss.detach()), float(kl.detach()), clipped, deviation

    def _apply(self) -> float:
        """Clip, step, average; returns the gradient's norm before clipping.

        Raises:
            TrainingError: if the norm is not finite; no weight has changed then.
        """
        settings = self._config.optimizer
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, settings.max_grad_norm))
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the gradient's norm is {norm}: the loss or a weight is not finite; lower "
                f"optimizer.learning_rate={settings.learning_rate} or resume from an earlier checkpoint"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.policy.state())
        return norm


def _split_by_prompt(samples: Sequence[TrainingSample], updates: int) -> list[list[TrainingSample]]:
    """Divide whole groups evenly over at most `updates` training steps; none is empty."""
    prompts = sorted({sample.request.prompt_id for sample in samples})
    count = min(updates, len(prompts))
    of_prompt = {prompt: place % count for place, prompt in enumerate(prompts)}
    parts: list[list[TrainingSample]] = [[] for _ in range(count)]
    for sample in samples:
        parts[of_prompt[sample.request.prompt_id]].append(sample)
    return parts


def _tensors(
    rows: Sequence[_Row], device: torch.device
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
