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
from storage.config.plugins import NoOptions, Registry, lazily
from storage.config.run_config import AlgorithmConfig, EvaluationConfig, SamplingConfig
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
        build: its class, or a function; takes a policy, its sampler, the sampling settings, the weight of the
            KL to the reference policy, and options.
        title: name of the method in texts; empty for the name in the settings.
        clips_ratio: True if it clips the ratio of new to old probabilities.
        needs_reference: True if it needs the reference policy whatever `algorithm.kl_weight` is.
        needs_old: True if rows of later updates take a forward pass of the policy before the first one, too.
        takes_pairs: True if it can train on a prompt file's pairs of a preferred and a rejected picture.
        rows: returns a sample's average number of training rows, given the sampling and algorithm settings,
            and options.
        check: refuses settings that do not fit its options, given the same arguments; raises
            `ConfigurationError`.
    """

    build: Callable[[Policy, Sampler, SamplingConfig, float, Any], Objective]
    options: type[Section] = NoOptions
    title: str = ""
    clips_ratio: bool = True
    needs_reference: bool = False
    needs_old: bool = False
    takes_pairs: bool = False
    rows: Callable[[SamplingConfig, AlgorithmConfig, Any], float] = lambda sampling, algorithm, options: (
        sampling.window_size
    )
    check: Callable[[SamplingConfig, AlgorithmConfig, Any], None] = lambda sampling, algorithm, options: None


def build_objective(
    policy: Policy, sampler: Sampler, sampling: SamplingConfig, algorithm: AlgorithmConfig
) -> Objective:
    """Build the objective that the settings name.

    Args:
        sampler: source of conditioning and schedule, the same as in the rollout.

    Raises:
        ConfigurationError: if there is no objective of that name, or one of its options is wrong.
    """
    plugin, options = OBJECTIVES.chosen(algorithm)
    return plugin.build(policy, sampler, sampling, algorithm.kl_weight, options)


def keeps_reference(algorithm: AlgorithmConfig, evaluation: EvaluationConfig) -> bool:
    """Return True if training needs the initial policy, for its objective or a KL, or after an alarm.

    Raises:
        ConfigurationError: if there is no objective of that name.
    """
    return passes_reference(algorithm) or evaluation.on_alarm == "kl"


def passes_reference(algorithm: AlgorithmConfig) -> bool:
    """Return True if every row also takes a forward pass of the reference policy.

    Raises:
        ConfigurationError: if there is no objective of that name.
    """
    return OBJECTIVES.find(algorithm.objective).needs_reference or algorithm.kl_weight > 0


def passes_beside(algorithm: AlgorithmConfig) -> float:
    """Return a row's average number of forward passes of other policies: the reference, the old policy.

    Raises:
        ConfigurationError: if there is no objective of that name.
    """
    updates = algorithm.updates_per_iteration
    later = (updates - 1) / updates if OBJECTIVES.find(algorithm.objective).needs_old else 0.0
    return passes_reference(algorithm) + later


def rows_of_sample(sampling: SamplingConfig, algorithm: AlgorithmConfig) -> float:
    """Return the rows that a run's objective makes of each sample: its forward and backward passes.

    Raises:
        ConfigurationError: if there is no objective of that name, or one of its options is wrong.
    """
    plugin, options = OBJECTIVES.chosen(algorithm)
    return plugin.rows(sampling, algorithm, options)


def _times(sampling: SamplingConfig, algorithm: AlgorithmConfig, options: AwmOptions | NftOptions) -> float:
    return options.times


def _check_grpo(
    sampling: SamplingConfig, algorithm: AlgorithmConfig, options: GrpoOptions | GuardOptions
) -> None:
    if sampling.sde == "none":
        raise ConfigurationError(
            f"sampling.sde is none with algorithm.objective={algorithm.objective}: without noise in "
            "its denoising steps a sample has no likelihood to train on; set sampling.sde=flow or cps, or "
            "algorithm.objective=nft"
        )
    tolerance = algorithm.ratio_tolerance
    if tolerance > options.clip_range:
        raise ConfigurationError(
            f"algorithm.ratio_tolerance is {tolerance}, above algorithm.options.clip_range="
            f"{options.clip_range}: a larger deviation of the ratio would be clipped unseen; lower it"
        )


def _check_guard(sampling: SamplingConfig, algorithm: AlgorithmConfig, options: GuardOptions) -> None:
    if sampling.sde != "flow":
        raise ConfigurationError(
            f"sampling.sde is {sampling.sde} with algorithm.objective={algorithm.objective}, "
            "which normalises the likelihood of the SDE's steps; set sampling.sde=flow, or another objective"
        )
    _check_grpo(sampling, algorithm, options)


def _dpo_rows(sampling: SamplingConfig, algorithm: AlgorithmConfig, options: DpoOptions) -> float:
    group = algorithm.group_size
    return 2 * min(options.pairs, group // 2) * options.times / group


def _check_dpo(sampling: SamplingConfig, algorithm: AlgorithmConfig, options: DpoOptions) -> None:
    if sampling.batch_size % 2:
        raise ConfigurationError(
            f"sampling.batch_size is {sampling.batch_size} with algorithm.objective="
            f"{algorithm.objective}: a pair's two images share a batch; set an even number"
        )
    if algorithm.zero_variance_groups == "train":
        raise ConfigurationError(
            f"algorithm.zero_variance_groups is train with algorithm.objective={algorithm.objective}: "
            "samples of equal reward do not form a pair; set it to drop"
        )


OBJECTIVES = Registry(
    "algorithm.objective",
    ObjectivePlugin,
    "spotlight.objectives",
    {
        "grpo": ObjectivePlugin(
            lazily("gpu_runtime.learning.objectives.grpo:GrpoObjective"),
            GrpoOptions,
            "Flow-GRPO",
            check=_check_grpo,
        ),
        "grpo-guard": ObjectivePlugin(
            lazily("gpu_runtime.learning.objectives.grpo:GuardedGrpoObjective"),
            GuardOptions,
            "GRPO-Guard",
            check=_check_guard,
        ),
        "nft": ObjectivePlugin(
            lazily("gpu_runtime.learning.objectives.nft:NftObjective"),
            NftOptions,
            "DiffusionNFT",
            clips_ratio=False,
            needs_old=True,
            rows=_times,
        ),
        "awm": ObjectivePlugin(
            lazily("gpu_runtime.learning.objectives.awm:AwmObjective"),
            AwmOptions,
            "AWM",
            needs_old=True,
            rows=_times,
        ),
        "dpo": ObjectivePlugin(
            lazily("gpu_runtime.learning.objectives.dpo:DpoObjective"),
            DpoOptions,
            "Diffusion-DPO",
            clips_ratio=False,
            needs_reference=True,
            takes_pairs=True,
            rows=_dpo_rows,
            check=_check_dpo,
        ),
    },
    refuse=lambda config, plugin, options: plugin.check(config.sampling, config.algorithm, options),
)
