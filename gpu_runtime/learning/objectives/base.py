"""The common base of the objectives: recomputed steps, the loss terms of rows, the gradient of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from gpu_runtime.diffusion.noise import Purpose, normal
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.diffusion.sde_step import StepTimes, Transition, log_prob, transition
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.models.protocol import Conditioning
from storage.config.run_config import SamplingConfig
from storage.config.section import Section

Options = TypeVar("Options", bound=Section)
Inputs = TypeVar("Inputs")
Predicted = TypeVar("Predicted")

_BATCHES = 4
"""Most batches of steps used to measure how far samples from older weights are from the policy."""


@dataclass(frozen=True)
class StepInputs:
    """The inputs of R rows, each a stochastic step of a sample; shapes as in the trajectory.

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
    """Computes steps as in the rollout, with the same schedule, noise level and batch shape."""

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
        """Return each row's policy; it carries gradient if gradients are enabled."""
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
        """Return the largest |ratio - 1| of a batch of steps: 0 if these weights drew them.

        For ODE sampling, which has no ratio, return the largest difference between a step's end and the
        recomputed one, relative to the step's length.
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


@dataclass(frozen=True)
class RowLoss:
    """The loss terms of R rows.

    Attributes:
        loss_R: loss of each row (carries gradient); its mean over rows is the loss.
        ratio_R: p_new / p_old, detached; None for objectives without a ratio.
        clipped_R: True where the clipped term is larger, so the row has no gradient; None for objectives
            without a ratio.
        margin_R: how much the policy prefers the winner of each row's pair, detached; None for objectives
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
            weight_R: weight of each row; 0 for padding rows.
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


class ConfiguredObjective(ABC, Generic[Options, Inputs, Predicted]):
    """Base of the project's objectives.

    Args:
        sampler: source of conditioning and schedule, the same as in the rollout.
    """

    _needs_reference = False
    """True if the loss needs the reference policy whatever the KL weight is."""

    def __init__(
        self, policy: Policy, sampler: Sampler, sampling: SamplingConfig, kl_weight: float, options: Options
    ) -> None:
        self._policy = policy
        self._sampler = sampler
        self._kl_weight = kl_weight
        self._options = options
        self._steps = StochasticSteps(policy, sampler, sampling)
        self.end()

    @abstractmethod
    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return the rows of samples, in order."""

    @abstractmethod
    def _inputs(self, rows: Sequence[Row]) -> Inputs:
        """Return the inputs of a batch of rows."""

    @abstractmethod
    def _predict(self, inputs: Inputs) -> Predicted:
        """Return the current weights' prediction; it carries gradient if gradients are enabled."""

    @abstractmethod
    def _distance(self, policy: Predicted, reference: Predicted) -> torch.Tensor:
        """Return each row's distance from the reference policy, shape (R,)."""

    @abstractmethod
    def _loss(
        self, rows: Sequence[Row], inputs: Inputs, policy: Predicted, reference: Predicted | None
    ) -> RowLoss:
        """Return the loss terms of a batch of rows.

        Args:
            rows: the rows, including padding.
            policy: prediction of the policy being trained (carries gradient).
            reference: prediction of the reference policy, if the loss or the KL needs it.
        """

    def _checked(self, rows: Sequence[Row]) -> Sequence[int]:
        """Return the indices of the rows whose ratio should be 1 at the first update."""
        return ()

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep nothing for later updates, unless a subclass needs the policy before the first step."""

    def end(self) -> None:
        """Forget what was kept from an iteration: nothing, unless a subclass keeps something."""

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of one batch."""
        device = self._policy.model.device
        # The shape is fixed; padding rows have weight 0.
        padded = self._steps.padded(rows)
        weight_R = torch.zeros(len(padded), device=device)
        weight_R[: len(rows)] = weight
        inputs = self._inputs(padded)
        reference = None
        if self._kl_weight > 0 or self._needs_reference:
            # Before the policy's own pass: in full training the reference swaps weights in place, which
            # must not touch tensors that a backward pass still needs.
            with torch.no_grad(), self._policy.reference():
                reference = self._predict(inputs)
        policy = self._predict(inputs)
        terms = self._loss(padded, inputs, policy, reference)
        kl = torch.zeros((), device=device)
        if reference is not None:
            kl = (self._distance(policy, reference) * weight_R).sum()
        loss = (terms.loss_R * weight_R).sum() + self._kl_weight * kl
        if loss.requires_grad:  # not if all rows are at noise levels with a frozen transformer
            loss.backward()
        return terms.batch_terms(weight_R, kl, self._checked(rows))
