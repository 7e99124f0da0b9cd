"""What the search for seeds decides between the explorer and the devices; no device is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_runtime.exploration.draft_planner import Draft
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.exploration.registry import build_explorer
from gpu_runtime.fleet.seed_search import SeedSearch
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RunConfig
from storage.prompts.files import PromptRecord

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
    return SeedSearch(config, build_explorer(config, PROMPTS), PROMPTS, nobody, nobody, nobody)


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
    search._explorer.forecast.add_drafts(lease_s=4.0, full_drafts=8.0)
    again = [search._task(1, WeightsVersion(1), MONITOR_ROUND, Draft(0, seed)) for seed in range(rescored)]
    # Five seconds on two devices, at half a second a draft.
    assert search._budget(2, headroom, again) == pytest.approx(budget)


def test_a_budget_that_is_set_is_the_budget():
    search = make_search(drafts=7)
    assert search._budget(2) == 7
    assert search._budget(2, 1.5, [search._task(1, WeightsVersion(1), MONITOR_ROUND, Draft(0, 0))]) == 7


def test_without_a_window_before_there_is_no_budget():
    assert make_search()._budget(2) is None


def drafted(iteration: int, version: int) -> SeedPlan:
    """Eight drafts of each of two prompts; the later seed scores more."""
    drafts = tuple(
        Candidate(prompt, seed, "full", version, seed / 8, False, None, 0)
        for prompt in (0, 1)
        for seed in range(8)
    )
    return SeedPlan(iteration, {0: (0, 7), 1: (0, 7)}, drafts)


def reviewed(search: SeedSearch, next_plan: SeedPlan, version_after: int) -> SeedPlan:
    """The next plan after a review of an iteration whose ranks have turned round."""
    plan = drafted(3, version=1)
    search.new_window(plan, WeightsVersion(2))
    assert search._window is not None
    search._window.rescored = tuple(
        Candidate(prompt, seed, "full", 2, 1 - seed / 8, False, None, MONITOR_ROUND)
        for prompt in (0, 1)
        for seed in range(1, 7)
    )
    scored = {(prompt, seed): Score(1 - seed / 8, False, "") for prompt in (0, 1) for seed in (0, 7)}
    review = search.review(plan, scored, next_plan, version_after)
    assert review.figures["spearman"] == pytest.approx(-1.0)
    assert review.next_plan is not None
    return review.next_plan


def test_stale_drafts_are_refused_where_ranks_have_turned_round():
    next_plan = drafted(4, version=2)
    assert reviewed(make_search(monitor_prompts=2), next_plan, version_after=3).refused


def test_drafts_of_the_weights_that_will_roll_them_out_are_not_refused():
    """Training that had nothing to learn from has left the weights as they were."""
    next_plan = drafted(4, version=2)
    assert reviewed(make_search(monitor_prompts=2), next_plan, version_after=2) == next_plan


@pytest.mark.parametrize(("drafts", "rounds"), [(0, [2, 2, 1]), (16, [2, 2, 2])])
def test_how_many_devices_there_are_changes_no_plan_of_a_set_number_of_drafts(drafts, rounds):
    """16 drafts in batches of 4: a round has a batch for each device, two at least."""
    found = []
    for devices in (1, 2, 4):
        search = make_search(drafts=drafts)
        fleet: Any = SimpleNamespace(drafters=lambda version, count=devices: [object()] * count)
        scoring: Any = SimpleNamespace(judge=lambda images, prompts: [])
        search._fleet, search._scoring = fleet, scoring
        search.new_window(SeedPlan(1, {}), WeightsVersion(1))
        search.begin(2)
        assert search._begun is not None and search._window is not None
        assert search._window.drafters == devices
        found.append(search._begun[1].planner.settings.rounds)
    assert found == rounds


def test_drafts_judged_beside_training_include_those_of_the_monitor():
    search = make_search(strategy="auto")
    search.new_window(SeedPlan(3, {0: (0, 1), 1: (0, 1)}), WeightsVersion(2))
    assert search._window is not None
    search._window.rescored = drafted(3, 2).candidates[:3]
    trainers = SimpleNamespace(spot=[])
    fleet: Any = SimpleNamespace(drafters=lambda version: [object()] * 5, trainers=trainers)
    search._fleet = fleet
    plan = search._window.plan
    found = search._seed_evidence(plan, {}, {}, drafted(4, 2))
    assert found is not None and (found.drafts, found.drafters) == (None, 5), "none were begun"
    trainers.spot.append(object())
    found = search._seed_evidence(plan, {}, {}, drafted(4, 2))
    assert found is not None and (found.drafters, found.spot_trainers) == (6, 1), "it could have drafted"
    search._window.drafters = 2
    found = search._seed_evidence(plan, {}, {}, drafted(4, 2))
    assert found is not None and (found.drafts, found.drafters) == (16 + 3, 2)
