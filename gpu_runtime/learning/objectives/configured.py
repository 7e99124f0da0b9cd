"""The common base of the objectives: the policy, its sampler and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.objectives.protocol import Row
from gpu_runtime.learning.objectives.stochastic_steps import StochasticSteps
from gpu_runtime.learning.policy import Policy
from storage.config.run_config import SamplingConfig
from storage.config.section import Section

Options = TypeVar("Options", bound=Section)


class ConfiguredObjective(Generic[Options]):
    """Base of the project's objectives.

    Args:
        policy: policy to train.
        sampler: source of conditioning and schedule, the same as in the rollout.
        sampling: settings of the rollout.
        kl_weight: weight of the KL to the reference policy.
        options: the objective's own options.
    """

    def __init__(
        self, policy: Policy, sampler: Sampler, sampling: SamplingConfig, kl_weight: float, options: Options
    ) -> None:
        self._policy = policy
        self._sampler = sampler
        self._batch_size, self._kl_weight = sampling.batch_size, kl_weight
        self._options = options
        self._steps = StochasticSteps(policy, sampler, sampling)
        self.end()

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep nothing of a later update's rows, unless a subclass needs the policy before the first step."""

    def end(self) -> None:
        """Forget what was kept of an iteration: nothing, unless a subclass keeps something."""
