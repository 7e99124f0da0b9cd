"""The denoising steps kept in training samples, computed again with the current weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gpu_runtime.diffusion.noise import Purpose, normal
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.diffusion.sde_step import StepTimes, Transition, log_prob, transition
from gpu_runtime.learning.objectives.protocol import Row, TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.models.protocol import Conditioning
from storage.config.run_config import SamplingConfig

_BATCHES = 4
"""Most batches of steps used to measure how far samples of older weights are from the policy."""


@dataclass(frozen=True)
class StepInputs:
    """The inputs of R rows, each one stochastic step of one sample; shapes as in the trajectory.

    Attributes:
        before_RSC, after_RSC: latents before and after the step.
        old_log_prob_R: log-probability under the policy that drew it.
    """

    before_RSC: torch.Tensor
    after_RSC: torch.Tensor
    old_log_prob_R: torch.Tensor
    times: StepTimes
    conditioning: Conditioning


class StochasticSteps:
    """Steps computed as in the rollout: with the same schedule, noise level and batch shape."""

    def __init__(self, policy: Policy, sampler: Sampler, sampling: SamplingConfig) -> None:
        self._policy = policy
        self._sampler = sampler
        self._sampling = sampling

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return a row for every stochastic step of every sample."""
        return [Row(sample, place) for sample in samples for place in range(len(sample.trajectory.step_W))]

    def padded(self, rows: Sequence[Row]) -> list[Row]:
        """Return a batch of the fixed shape, padded with copies of its first row."""
        return [*rows, *[rows[0]] * (self._sampling.batch_size - len(rows))]

    def inputs(self, rows: Sequence[Row]) -> StepInputs:
        """Return the inputs of a batch, on the policy's device."""
        device = self._policy.model.device
        pairs = [(row.sample.trajectory, row.place) for row in rows]
        before = np.stack([trajectory.before_WSC[place] for trajectory, place in pairs])
        after = np.stack([trajectory.after_WSC[place] for trajectory, place in pairs])
        old = np.array([trajectory.log_prob_W[place] for trajectory, place in pairs], np.float32)
        step = torch.tensor([int(trajectory.step_W[place]) for trajectory, place in pairs])
        return StepInputs(
            torch.from_numpy(before).to(device),
            torch.from_numpy(after).to(device),
            torch.from_numpy(old).to(device),
            StepTimes.at(self._sampler.schedule(rows[0].sample.request), step).to(device),
            self._sampler.conditioning(row.sample.request for row in rows),
        )

    def noise(self, rows: Sequence[Row]) -> torch.Tensor:
        """Return the noise that the sampler drew for each row's step, shape (R, S, C), on the device."""
        model = self._policy.model
        drawn = torch.empty(len(rows), *model.latent_shape)
        steps = [int(row.sample.trajectory.step_W[row.place]) for row in rows]
        for step in sorted(set(steps)):
            chosen = [index for index, of_row in enumerate(steps) if of_row == step]
            streams = [stream_of(rows[index].sample.request) for index in chosen]
            drawn[chosen] = normal(streams, Purpose.SDE, step, model.latent_shape)
        return drawn.to(model.device)

    def transition(self, inputs: StepInputs) -> Transition:
        """Return the policy of each row; it carries gradient if gradients are enabled."""
        noise_level_R = torch.full((len(inputs.before_RSC),), self._sampling.noise_level)
        velocity = self._policy.model.velocity(inputs.before_RSC, inputs.times.sigma_B, inputs.conditioning)
        return transition(
            self._sampling.sde, inputs.before_RSC, velocity, inputs.times, noise_level_R.to(velocity.device)
        )

    def log_prob(self, inputs: StepInputs, policy: Transition) -> torch.Tensor:
        """Return the log-probability of each row's step under a policy, shape (R,)."""
        return log_prob(self._sampling.sde, inputs.after_RSC, policy)

    @torch.no_grad()
    def deviation(self, samples: Sequence[TrainingSample]) -> float:
        """Return the largest |ratio - 1| of one batch of steps: 0 if the weights are those that drew them.

        If sampling is an ODE, which has no ratio, it is the largest difference between a step's end and
        the recomputed one, relative to the step's length.
        """
        rows = self.rows(samples)[: self._sampling.batch_size]
        if not rows:
            return 0.0
        moved_R = self._moved(rows)
        if self._sampling.sde == "none":
            return float(moved_R.max())
        return float((torch.exp(moved_R) - 1).abs().max())

    @torch.no_grad()
    def off_policy(self, samples: Sequence[TrainingSample]) -> tuple[float, float]:
        """Return `ratio_spread` and `kl` of `OffPolicyFigures`, from a few batches of evenly spaced steps."""
        rows, size = self.rows(samples), self._sampling.batch_size
        count = min(len(rows), _BATCHES * size)
        looked = [rows[place * len(rows) // count] for place in range(count)]
        batches = [looked[first : first + size] for first in range(0, count, size)]
        moved = torch.cat([self._moved(batch) for batch in batches]).double()
        spread = float(moved.square().mean().sqrt())
        if self._sampling.sde == "none":
            return spread, 0.0
        return spread, float((torch.expm1(moved) - moved).mean())

    def _moved(self, rows: Sequence[Row]) -> torch.Tensor:
        """Return the log ratio of at most a batch of rows, or an ODE step's relative change; shape (R,)."""
        inputs = self.inputs(self.padded(rows))
        policy = self.transition(inputs)
        if self._sampling.sde == "none":
            apart_R = (policy.mean_BSC - inputs.after_RSC).flatten(1).norm(dim=1)
            length_R = (inputs.after_RSC - inputs.before_RSC).flatten(1).norm(dim=1)
            return (apart_R / length_R)[: len(rows)]
        return (self.log_prob(inputs, policy) - inputs.old_log_prob_R)[: len(rows)]
