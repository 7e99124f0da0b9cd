"""The objectives by name. Each is imported, with torch, only when it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_runtime.learning.objectives.options import (
    AwmOptions,
    DpoOptions,
    GrpoOptions,
    GuardOptions,
    NftOptions,
)
from storage.config.plugins import NoOptions, Registry, as_values, read_options
from storage.config.run_config import RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError

if TYPE_CHECKING:
    from gpu_runtime.diffusion.sampler import Sampler
    from gpu_runtime.learning.objectives.protocol import Objective
    from gpu_runtime.learning.policy import Policy


@dataclass(frozen=True)
class ObjectivePlugin:
    """An objective that `algorithm.objective` can name: how to build it from settings.

    Attributes:
        build: function of a policy, its sampler, the run's configuration and options that builds it.
        options: model of its `[algorithm.options]`.
        title: name of the method in texts; empty for the name in the settings.
        clips_ratio: True if it clips the ratio of new to old probabilities.
        needs_reference: True if it needs the reference policy, whatever `algorithm.kl_weight` is.
        takes_pairs: True if it can train on two pictures of a prompt file, of which one is preferred.
        rows: function of the settings and options that returns the rows of a sample in training, on average.
        check: function that refuses settings that do not fit its options; raises `ConfigurationError`.
    """

    build: Callable[[Policy, Sampler, RunConfig, Any], Objective]
    options: type[Section] = NoOptions
    title: str = ""
    clips_ratio: bool = True
    needs_reference: bool = False
    takes_pairs: bool = False
    rows: Callable[[RunConfig, Any], float] = lambda config, options: config.sampling.window_size
    check: Callable[[RunConfig, Any], None] = lambda config, options: None


def build_objective(policy: Policy, sampler: Sampler, config: RunConfig) -> Objective:
    """Build the objective that the settings name.

    Args:
        policy: policy to train.
        sampler: source of conditioning and schedule, the same as in the rollout.
        config: the run's configuration.

    Raises:
        ConfigurationError: if there is no objective of that name, or one of its options is wrong.
    """
    plugin = OBJECTIVES.find(config.algorithm.objective)
    options = read_options("algorithm.options", plugin.options, config.algorithm.options)
    return plugin.build(policy, sampler, config, options)


def read_objective_options(config: RunConfig) -> RunConfig:
    """Return the settings with the objective's options as they are stored.

    Raises:
        ConfigurationError: if there is no such objective, or a setting does not fit it.
    """
    plugin = OBJECTIVES.find(config.algorithm.objective)
    options = read_options("algorithm.options", plugin.options, config.algorithm.options)
    plugin.check(config, options)
    algorithm = config.algorithm.model_copy(update={"options": as_values(options)})
    return config.model_copy(update={"algorithm": algorithm})


def keeps_reference(config: RunConfig) -> bool:
    """Return True if training needs the policy before training: for its objective or a KL, or after an alarm.

    Raises:
        ConfigurationError: if there is no objective of that name.
    """
    return passes_reference(config) or config.evaluation.on_alarm == "kl"


def passes_reference(config: RunConfig) -> bool:
    """Return True if every row takes a forward pass of the reference policy, too.

    Raises:
        ConfigurationError: if there is no objective of that name.
    """
    return OBJECTIVES.find(config.algorithm.objective).needs_reference or config.algorithm.kl_weight > 0


def rows_of_sample(config: RunConfig) -> float:
    """Return the rows that a run's objective makes of each sample: its forward and backward passes.

    Raises:
        ConfigurationError: if there is no objective of that name, or one of its options is wrong.
    """
    plugin = OBJECTIVES.find(config.algorithm.objective)
    options = read_options("algorithm.options", plugin.options, config.algorithm.options)
    return plugin.rows(config, options)


def _grpo(policy: Policy, sampler: Sampler, config: RunConfig, options: GrpoOptions) -> Objective:
    from gpu_runtime.learning.objectives.grpo import GrpoObjective

    return GrpoObjective(policy, sampler, config.sampling, config.algorithm.kl_weight, options)


def _guard(policy: Policy, sampler: Sampler, config: RunConfig, options: GuardOptions) -> Objective:
    from gpu_runtime.learning.objectives.grpo_guard import GuardedGrpoObjective

    return GuardedGrpoObjective(policy, sampler, config.sampling, config.algorithm.kl_weight, options)


def _check_grpo(config: RunConfig, options: GrpoOptions | GuardOptions) -> None:
    if config.sampling.sde == "none":
        raise ConfigurationError(
            f"sampling.sde is none with algorithm.objective={config.algorithm.objective}: without noise in "
            "its denoising steps a sample has no likelihood to train on; set sampling.sde=flow or cps, or "
            "algorithm.objective=nft"
        )
    tolerance = config.algorithm.ratio_tolerance
    if tolerance > options.clip_range:
        raise ConfigurationError(
            f"algorithm.ratio_tolerance is {tolerance}, above algorithm.options.clip_range="
            f"{options.clip_range}: a ratio that is off by more would be clipped unseen; lower it"
        )


def _check_guard(config: RunConfig, options: GuardOptions) -> None:
    if config.sampling.sde != "flow":
        raise ConfigurationError(
            f"sampling.sde is {config.sampling.sde} with algorithm.objective={config.algorithm.objective}, "
            "which normalises the likelihood of the SDE's steps; set sampling.sde=flow, or another objective"
        )
    _check_grpo(config, options)


def _nft(policy: Policy, sampler: Sampler, config: RunConfig, options: NftOptions) -> Objective:
    from gpu_runtime.learning.objectives.nft import NftObjective

    return NftObjective(policy, sampler, config.sampling, config.algorithm.kl_weight, options)


def _awm(policy: Policy, sampler: Sampler, config: RunConfig, options: AwmOptions) -> Objective:
    from gpu_runtime.learning.objectives.awm import AwmObjective

    return AwmObjective(policy, sampler, config.sampling, config.algorithm.kl_weight, options)


def _dpo(policy: Policy, sampler: Sampler, config: RunConfig, options: DpoOptions) -> Objective:
    from gpu_runtime.learning.objectives.dpo import DpoObjective

    return DpoObjective(policy, sampler, config.sampling, config.algorithm.kl_weight, options)


def _dpo_rows(config: RunConfig, options: DpoOptions) -> float:
    group = config.algorithm.group_size
    return 2 * min(options.pairs, group // 2) * options.times / group


def _check_dpo(config: RunConfig, options: DpoOptions) -> None:
    if config.sampling.batch_size % 2:
        raise ConfigurationError(
            f"sampling.batch_size is {config.sampling.batch_size} with algorithm.objective="
            f"{config.algorithm.objective}: the two images of a pair are in one batch; set an even number"
        )
    if config.algorithm.zero_variance_groups == "train":
        raise ConfigurationError(
            f"algorithm.zero_variance_groups is train with algorithm.objective={config.algorithm.objective}: "
            "samples of equal reward are no pair; set it to drop"
        )


OBJECTIVES = Registry(
    "algorithm.objective",
    ObjectivePlugin,
    "spotlight.objectives",
    {
        "grpo": ObjectivePlugin(_grpo, GrpoOptions, "Flow-GRPO", check=_check_grpo),
        "grpo-guard": ObjectivePlugin(_guard, GuardOptions, "GRPO-Guard", check=_check_guard),
        "nft": ObjectivePlugin(
            _nft,
            NftOptions,
            "DiffusionNFT",
            clips_ratio=False,
            rows=lambda config, options: options.times,
        ),
        "awm": ObjectivePlugin(_awm, AwmOptions, "AWM", rows=lambda config, options: options.times),
        "dpo": ObjectivePlugin(
            _dpo,
            DpoOptions,
            "Diffusion-DPO",
            clips_ratio=False,
            needs_reference=True,
            takes_pairs=True,
            rows=_dpo_rows,
            check=_check_dpo,
        ),
    },
)
