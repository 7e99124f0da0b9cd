"""The exploration strategies by name, and a run's explorer under one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.strategies.auto import Auto
from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.off_policy import OffPolicy
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import Strategy
from storage.config.exploration import ExplorationConfig
from storage.config.plugins import NoOptions, Registry
from storage.config.run_config import RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord


@dataclass(frozen=True)
class StrategyPlugin:
    """A strategy that `exploration.strategy` can name, and how to build it from settings.

    Attributes:
        build: builds it from its options.
        explorer: class that learns about prompts and plans drafts; a subclass may explore other prompts,
            allocate drafts differently, or review them by another measure.
    """

    build: Callable[[Any], Strategy]
    options: type[Section] = NoOptions
    explorer: type[SeedExplorer] = SeedExplorer


STRATEGIES = Registry(
    "exploration.strategy",
    StrategyPlugin,
    "spotlight.strategies",
    {
        "plain": StrategyPlugin(lambda options: PLAIN),
        "stale": StrategyPlugin(lambda options: STALE),
        "fresh": StrategyPlugin(lambda options: FRESH),
        "off_policy": StrategyPlugin(lambda options: OffPolicy()),
        "auto": StrategyPlugin(lambda options: Auto()),
    },
    refuse=lambda config, plugin, options: plugin.build(options).check(config),
)


def strategy_of(settings: ExplorationConfig) -> Strategy:
    """Return the strategy that the settings name, in its initial state.

    Raises:
        ConfigurationError: if no strategy has that name, or its options are invalid.
    """
    plugin, options = STRATEGIES.chosen(settings)
    return plugin.build(options)


def build_explorer(config: RunConfig, prompts: Sequence[PromptRecord]) -> SeedExplorer:
    """Return the explorer of a run's training prompts for the strategy that the settings name.

    Raises:
        ConfigurationError: if there is no such strategy, a fidelity is unknown, or the settings explore
            more prompts than exist.
    """
    plugin = STRATEGIES.find(config.exploration.strategy)
    prompt_ids = [prompt.prompt_id for prompt in prompts]
    try:
        explorer = plugin.explorer(config, prompt_ids, strategy_of(config.exploration))
        explorer.prompts(1)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(
            f"exploration cannot work with exploration.fidelities = {list(config.exploration.fidelities)} "
            f"and exploration.prompts = {config.exploration.prompts}: {error}"
        ) from error
    return explorer
