"""The exploration strategies by name: when drafts are made, and what chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runtime.exploration.explorer import DraftTiming, SeedExplorer
from gpu_runtime.exploration.fidelity import FULL
from gpu_runtime.exploration.off_policy import OffPolicyExplorer
from storage.config.plugins import NoOptions, Registry, as_values, read_options
from storage.config.run_config import RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord


@dataclass(frozen=True)
class StrategyPlugin:
    """How settings become a strategy; one of these is what `exploration.strategy` names.

    Attributes:
        build: makes it of the run's configuration, the ids of all training prompts, its timing and its
            options: `SeedExplorer`, or a subclass of it.
        timing: when it makes its drafts.
        options: what it reads of `[exploration.options]`.
        check: refuses settings that it cannot work with; raises `ConfigurationError`.
        trains_on_drafts: whether the chosen drafts are the training samples, rather than rolled out again.
    """

    build: Callable[[RunConfig, Sequence[int], DraftTiming, Any], SeedExplorer]
    timing: DraftTiming
    options: type[Section] = NoOptions
    check: Callable[[RunConfig], None] = lambda config: None
    trains_on_drafts: bool = False


def _check_whole_drafts(config: RunConfig) -> None:
    if config.exploration.fidelities != (FULL,):
        raise ConfigurationError(
            f"exploration.strategy is {config.exploration.strategy} with exploration.fidelities="
            f"{list(config.exploration.fidelities)}: its drafts are trained on, and a cheaper draft is no "
            "sample of the policy; leave fidelities out, or set exploration.strategy=stale"
        )


STRATEGIES = Registry(
    "exploration.strategy",
    StrategyPlugin,
    "spotlight.strategies",
    {
        "plain": StrategyPlugin(SeedExplorer, DraftTiming.NEVER),
        "stale": StrategyPlugin(SeedExplorer, DraftTiming.TRAINING_WINDOW),
        "fresh": StrategyPlugin(SeedExplorer, DraftTiming.BEFORE_ROLLOUT),
        "off_policy": StrategyPlugin(
            OffPolicyExplorer, DraftTiming.TRAINING_WINDOW, check=_check_whole_drafts, trains_on_drafts=True
        ),
    },
)


def strategy_of(config: RunConfig) -> StrategyPlugin:
    """The strategy that the settings name.

    Raises:
        ConfigurationError: there is none of that name.
    """
    return STRATEGIES.find(config.exploration.strategy)


def read_strategy_options(config: RunConfig) -> RunConfig:
    """The settings with the strategy's options as they are stored.

    Raises:
        ConfigurationError: there is no such strategy, or a setting leaves it no room.
    """
    strategy = strategy_of(config)
    if strategy.timing is not DraftTiming.NEVER:
        _check_drafts(config, strategy.timing)
    strategy.check(config)
    options = as_values(_options(config, strategy))
    return config.model_copy(
        update={"exploration": config.exploration.model_copy(update={"options": options})}
    )


def build_explorer(config: RunConfig, prompts: Sequence[PromptRecord]) -> SeedExplorer:
    """The strategy that the settings name, for a run's training prompts.

    Raises:
        ConfigurationError: there is none of that name, a fidelity is unknown, or more prompts are to be
            explored than there are.
    """
    strategy = strategy_of(config)
    prompt_ids = [prompt.prompt_id for prompt in prompts]
    try:
        explorer = strategy.build(config, prompt_ids, strategy.timing, _options(config, strategy))
        explorer.prompts(1)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(
            f"exploration cannot work with exploration.fidelities = {list(config.exploration.fidelities)} "
            f"and exploration.prompts = {config.exploration.prompts}: {error}"
        ) from error
    return explorer


def _options(config: RunConfig, strategy: StrategyPlugin) -> Section:
    return read_options("exploration.options", strategy.options, config.exploration.options)


def _check_drafts(config: RunConfig, timing: DraftTiming) -> None:
    """Refuse what leaves nothing to choose from, or no device to explore on."""
    settings, runtime, group_size = config.exploration, config.runtime, config.algorithm.group_size
    if settings.candidates < group_size:
        raise ConfigurationError(
            f"exploration.candidates is {settings.candidates}, below algorithm.group_size={group_size}: "
            "there is nothing to choose from; raise candidates to several groups, or lower group_size"
        )
    trained = config.algorithm.prompts_per_iteration
    if 0 < settings.prompts < trained:
        raise ConfigurationError(
            f"exploration.prompts is {settings.prompts}, below algorithm.prompts_per_iteration={trained}: "
            "the prompt groups to train on are chosen from the explored ones; raise prompts, or set it to 0 "
            "to explore no others"
        )
    beside = runtime.counts_devices or runtime.least_workers > runtime.trainer_workers
    if timing is DraftTiming.TRAINING_WINDOW and not beside:
        raise ConfigurationError(
            f"exploration.strategy is {settings.strategy} with runtime.reserved_workers="
            f"{runtime.trainer_workers} and runtime.spot_workers=0: every device trains, so none could "
            "explore meanwhile; add a worker, or set exploration.strategy to plain or fresh"
        )
    if 0 < settings.drafts < group_size:
        raise ConfigurationError(
            f"exploration.drafts is {settings.drafts}, below algorithm.group_size={group_size}: not one "
            "prompt could be explored; raise drafts, or set exploration.strategy=plain"
        )
