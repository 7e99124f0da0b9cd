"""Exploration across iterations: plans, fallbacks, state."""

from __future__ import annotations

import json

import pytest

from gpu_runtime.exploration.plan import SeedPlan, plan_from_json, plan_to_json, seed_figures
from storage.config.run_config import RunConfig
from storage.record.results import variance_gain
from tests.tiny_exploration import explore, explorer_of, make_config, rescored, rising, rolled


def test_the_extremes_of_each_prompt_are_kept():
    plan = explore(explorer_of(make_config()), 1, rising)
    assert plan.seeds == {4: (0, 7), 5: (0, 7)}
    assert plan.explored_score[4, 7] == 7 / 8
    assert plan.compared.keys() == plan.seeds.keys()


def test_a_budget_of_zero_gives_plain_seeds():
    plan = explore(explorer_of(make_config()), 1, rising, budget=0)
    assert plan.seeds == {4: (0, 1), 5: (0, 1)}
    assert plan.figures["prompts_unexplored"] == 2
    assert plan.explored_score == {}


def test_a_scorer_that_fails_on_a_quarter_costs_those_drafts_only():
    plan = explore(explorer_of(make_config()), 1, lambda p, s: None if s % 4 == 1 else s / 8)
    assert plan.seeds == {4: (0, 7), 5: (0, 7)}
    assert plan.figures["draft_errors"] == plan.figures["drafts"] / 4
    assert (4, 1) not in plan.explored_score
    figures = explore(explorer_of(make_config()), 1, lambda p, s: None if p == 4 else s / 8).figures
    assert (figures["prompts_explored"], figures["prompts_unexplored"]) == (1, 1)


def test_the_exact_signal_learns_from_exact_matches():
    config = make_config().model_dump() | {"reward": {"signal": "exact"}}
    explorer = explorer_of(RunConfig.model_validate(config))
    plan = explore(explorer, 1, lambda p, s: 1.0 if s == 5 else 0.9)
    assert plan.seeds == {4: (0, 5), 5: (0, 5)}


def test_the_state_goes_through_json_and_changes_no_plan():
    first = explorer_of(make_config(monitor_prompts=2))
    for iteration in (1, 2, 3):
        plan = explore(first, iteration, lambda p, s: ((p + s) % 4) / 4)
        first.review(plan, rescored(plan, first, rising), rolled(plan, rising))
        first.forecast.add_window(2.0)
        first.forecast.add_drafts(1.0, 10)
    second = explorer_of(make_config(monitor_prompts=2))
    second.restore(json.loads(json.dumps(first.state())))
    plans = [explore(explorer, 4, lambda p, s: ((p + s) % 5) / 5, budget=9) for explorer in (first, second)]
    assert plans[0] == plans[1]
    assert first.forecast.budget(3) == second.forecast.budget(3) == pytest.approx(60)


def test_a_plan_goes_through_json():
    plan = explore(explorer_of(make_config()), 1, lambda p, s: None if s == 1 else s / 8)
    for there in (plan, SeedPlan(1, {4: (0,)}).in_place_of(plan)):
        assert plan_from_json(json.loads(json.dumps(plan_to_json(there)))) == there


def test_more_prompts_are_explored_than_kept():
    explorer = explorer_of(make_config(prompts=4), [4, 5, 6, 7])
    plan = explore(explorer, 1, lambda p, s: float(s == 0) if p in (5, 6) else 0.0)
    assert set(plan.seeds) == {5, 6}


def test_the_variance_before_and_after_the_choice_is_reported():
    # Scores 0, 0, 0, 1 of each prompt: pairs differ with 1 in 2, by 1/4; the kept pair does.
    explorer = explorer_of(make_config(candidates=4))
    plan = explore(explorer, 1, lambda p, s: float(s == 3))
    assert plan.figures["drafts"] == 8
    assert plan.figures["spread_random"] == pytest.approx(1 / 8)
    assert plan.figures["spread_kept"] == pytest.approx(1 / 4)


def test_the_variance_gain_is_over_prompts_whose_samples_were_all_judged():
    # Of prompt 4 random pairs vary by 1/8 and the kept one by 1/4; the drafts of prompt 5 are all equal.
    plan = explore(explorer_of(make_config(candidates=4)), 1, lambda p, s: float(s == 3) if p == 4 else 0.5)
    assert plan.figures["spread_random"] == pytest.approx(1 / 16)
    signal = {(4, seed): float(seed == 3) for seed in plan.seeds[4]} | {(5, plan.seeds[5][0]): 0.5}
    figures = seed_figures(plan, signal, {})
    spreads = [figures[name] for name in ("spread_random", "spread_rollout", "spread_kept")]
    assert variance_gain([spreads]) == (pytest.approx(2.0), True), "prompt 5 counts nowhere"
    assert spreads[2] == pytest.approx(1 / 4)
    assert seed_figures(plan, {}, {}) == plan.figures


def test_prompts_that_were_not_reached_have_no_spread():
    figures = explore(explorer_of(make_config()), 1, rising, budget=0).figures
    assert not {"spread_random", "spread_kept"} & set(figures)


def test_full_drafts_are_made_until_a_preview_is_measured():
    explorer = explorer_of(make_config(fidelities=["preview-2"]))
    assert {draft.fidelity for draft in explorer.begin(1, None).next_round()} == {"full"}


def test_a_round_has_a_batch_for_each_device():
    explorer = explorer_of(make_config(candidates=512))  # batches of 16
    rounds = {n: explorer.begin(1, 512.0, devices=n).settings.rounds for n in (1, 2, 4, 8, 64)}
    assert rounds == {1: 16, 2: 16, 4: 8, 8: 4, 64: 1}
