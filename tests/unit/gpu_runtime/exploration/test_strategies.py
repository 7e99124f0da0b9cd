"""When each strategy drafts, and with which weights, as the loop calls it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.registry import STRATEGIES, StrategyPlugin, build_explorer, strategy_of
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import Ahead
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord
from tasks.inputs import plugin_facts
from tests.simulated import simulated, small_config
from tests.tiny_exploration import make_config

STAYS = Trace((TraceEvent(0.0, "add", "spot"),), 1000.0)
FRESH_FIRST = "examples.own_strategy:FRESH_FIRST"


class RecordedDrafting:
    """Notes what a strategy asks for, as (iteration, way to choose)."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def plain(self, iteration: int) -> SeedPlan:
        return self._plan(iteration, "plain")

    def in_window(self, iteration: int) -> Ahead:
        return Ahead(lambda: self._plan(iteration, "window"))

    def on_all_devices(self, iteration: int, as_in_window: bool = False) -> SeedPlan:
        return self._plan(iteration, "all, as a window" if as_in_window else "all")

    def _plan(self, iteration: int, way: str) -> SeedPlan:
        self.asked.append((iteration, way))
        return SeedPlan(iteration, {})


def config_of(strategy: str, **options: Any) -> RunConfig:
    return STRATEGIES.stored(make_config(strategy=strategy, options=options))


@pytest.mark.parametrize(
    ("strategy", "ways", "again"),
    [
        ("plain", ["plain", "plain", "plain", "plain"], "all"),
        ("stale", ["plain", "window", "window", "window"], "all, as a window"),
        ("fresh", ["all", "all", "all", "all"], "all"),
        ("off_policy", ["plain", "window", "window", "window"], "all, as a window"),
        (FRESH_FIRST, ["all", "all", "window", "window"], "all, as a window"),
    ],
)
def test_when_drafts_are_made(strategy: str, ways: list[str], again: str):
    chosen, drafting = strategy_of(config_of(strategy).exploration), RecordedDrafting()
    ahead: Ahead | None = None
    for iteration in range(1, 5):
        # As `flows/post_train.py` does it.
        assert (chosen.before_rollout(iteration, drafting) if ahead is None else ahead.choose()) is not None
        ahead = chosen.ahead(iteration + 1, drafting)
    assert drafting.asked == list(enumerate(ways, 1))
    chosen.redraft(9, drafting)
    assert drafting.asked[-1] == (9, again)


@pytest.mark.parametrize(
    ("strategy", "made"),
    [
        ("plain", "never"),
        ("stale", "training window"),
        ("fresh", "before the rollout"),
        ("off_policy", "training window"),
        (FRESH_FIRST, "training window and before the rollout"),
    ],
)
def test_the_record_of_a_run_says_when_drafts_were_made(strategy: str, made: str):
    assert plugin_facts(config_of(strategy))["drafts are made"] == made


def test_only_what_drafts_beside_training_needs_a_device_that_does_not_train():
    alone = {"reserved_workers": 1, "spot_workers": 0, "trainer_workers": 1}
    for strategy, refused in (("plain", False), ("fresh", False), ("stale", True), (FRESH_FIRST, True)):
        config = RunConfig.model_validate(
            {"runtime": alone, "exploration": {"strategy": strategy, "candidates": 64}}
        )
        if refused:
            with pytest.raises(ConfigurationError, match="every device trains, so none can explore"):
                STRATEGIES.stored(config)
        else:
            STRATEGIES.stored(config)


class LastPrompts(SeedExplorer):
    """Explores the prompts that come last."""

    def prompts(self, iteration: int) -> list[int]:
        return sorted(self._prompt_ids)[-2:]


def test_a_strategy_may_name_an_explorer_of_its_own(monkeypatch: pytest.MonkeyPatch):
    plugin = StrategyPlugin(lambda options: STALE, explorer=LastPrompts)
    monkeypatch.setitem(STRATEGIES._own, "last", plugin)
    explorer = build_explorer(config_of("last"), [PromptRecord(number, "any") for number in range(5)])
    assert explorer.plain(1).seeds.keys() == {3, 4} == set(explorer.begin(1, None).prompts)


def test_a_simulated_run_drafts_when_a_strategy_of_ones_own_says():
    """Two iterations draft before their rollout, and the third in the window of the second."""
    config = small_config(3, exploration={"candidates": 8})
    strategies = [strategy_of(config_of(FRESH_FIRST, fresh=fresh).exploration) for fresh in (0, 2, 3)]
    beside, mixed, before = (simulated(config, 1, 1, STAYS, strategy) for strategy in strategies)
    assert beside.phases["draft"] == 0 < mixed.phases["draft"] < before.phases["draft"]
    assert before.drafts == 3 * 32 and mixed.drafts > 2 * 32
