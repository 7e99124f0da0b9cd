"""The common base of the objectives: the policy, its sampler and settings, and the gradient of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.objectives.row_loss import RowLoss
from gpu_runtime.learning.objectives.stochastic_steps import StochasticSteps
from gpu_runtime.learning.policy import Policy
from storage.config.run_config import SamplingConfig
from storage.config.section import Section

Options = TypeVar("Options", bound=Section)
Inputs = TypeVar("Inputs")
Predicted = TypeVar("Predicted")


class ConfiguredObjective(ABC, Generic[Options, Inputs, Predicted]):
    """Base of the project's objectives.

    Args:
        sampler: source of conditioning and schedule, the same as in the rollout.
    """

    _needs_reference = False
    """True if the loss needs the reference policy, whatever the weight of the KL."""

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
        """Return what a batch of rows is computed from."""

    @abstractmethod
    def _predict(self, inputs: Inputs) -> Predicted:
        """Return what the present weights predict; it carries gradient if gradients are enabled."""

    @abstractmethod
    def _distance(self, policy: Predicted, reference: Predicted) -> torch.Tensor:
        """Return each row's distance from the reference policy, shape (R,)."""

    @abstractmethod
    def _loss(
        self, rows: Sequence[Row], inputs: Inputs, policy: Predicted, reference: Predicted | None
    ) -> RowLoss:
        """Return the loss terms of a batch of rows.

        Args:
            rows: the rows, with those that only pad the batch.
            policy: prediction of the policy being trained (carries gradient).
            reference: prediction of the reference policy, if the loss or the KL needs it.
        """

    def _checked(self, rows: Sequence[Row]) -> Sequence[int]:
        """Return the indices of the rows whose ratio should be 1 at the first update."""
        return ()

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep nothing of a later update's rows, unless a subclass needs the policy before the first step."""

    def end(self) -> None:
        """Forget what was kept of an iteration: nothing, unless a subclass keeps something."""

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of one batch."""
        device = self._policy.model.device
        # The shape is fixed; rows that only pad it have weight 0.
        padded = self._steps.padded(rows)
        weight_R = torch.zeros(len(padded), device=device)
        weight_R[: len(rows)] = weight
        inputs = self._inputs(padded)
        reference = None
        if self._kl_weight > 0 or self._needs_reference:
            # Before the policy's own pass: a reference of full training swaps weights in place, which
            # must not touch tensors that a backward pass still needs.
            with torch.no_grad(), self._policy.reference():
                reference = self._predict(inputs)
        policy = self._predict(inputs)
        terms = self._loss(padded, inputs, policy, reference)
        kl = torch.zeros((), device=device)
        if reference is not None:
            kl = (self._distance(policy, reference) * weight_R).sum()
        ((terms.loss_R * weight_R).sum() + self._kl_weight * kl).backward()
        return terms.batch_terms(weight_R, kl, self._checked(rows))
