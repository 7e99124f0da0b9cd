"""What the search for seeds decides between the explorer and the devices; no device is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_runtime.exploration.draft_planner import Draft
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.seed_search import SeedSearch, build_explorer
from storage.config import RunConfig
from storage.prompts import PromptRecord

PROMPTS = [PromptRecord(number, f"prompt {number}") for number in range(4)]


def make_search(**exploration: Any) -> SeedSearch:
    config = RunConfig.model_validate(
        {
            "algorithm": {"prompts_per_iteration": 2, "group_size": 2},
            "sampling": {"batch_size": 4},
            "exploration": {"strategy": "stale", "candidates": 8, **exploration},
        }
    )
    nobody: Any = None
    return SeedSearch(config, build_explorer(config, PROMPTS), PROMPTS, nobody, nobody)


@pytest.mark.parametrize(
    ("headroom", "rescored", "budget"),
    [
        (1.0, 0, 20.0),
        (1.5, 0, 30.0),
        (1.5, 5, 22.0),  # five are two batches of four, in full
        (1.0, 21, 0.0),  # never below nothing
    ],
)
def test_a_budget_is_what_a_window_holds_less_what_is_scored_again(headroom, rescored, budget):
    search = make_search()
    search._explorer.forecast.add_window(5.0)
    search._explorer.forecast.add_drafts(device_s=4.0, full_drafts=8.0)
    again = [search._task(1, 1, MONITOR_ROUND, Draft(0, seed)) for seed in range(rescored)]
    # Five seconds on two devices, at half a second a draft.
    assert search._budget(2, headroom, again) == pytest.approx(budget)


def test_a_budget_that_is_set_is_the_budget():
    search = make_search(drafts=7)
    assert search._budget(2) == 7
    assert search._budget(2, 1.5, [search._task(1, 1, MONITOR_ROUND, Draft(0, 0))]) == 7


def test_without_a_window_before_there_is_no_budget():
    assert make_search()._budget(2) is None
