"""Exploration across iterations: fallbacks, the monitor, previews that prove themselves, state."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gpu_runtime.exploration.draft_reliability import DraftReliability
from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.fidelity import evaluations_of, preview_step
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate, SeedPlan, plan_from_json, plan_to_json
from gpu_runtime.exploration.window import WindowForecast
from gpu_runtime.rewards.protocol import Score
from storage.config import RunConfig


def make_config(**exploration) -> RunConfig:
    return RunConfig.model_validate(
        {
            "algorithm": {"prompts_per_iteration": 2, "group_size": 2},
            "exploration": {"strategy": "stale", "candidates": 8, **exploration},
        }
    )


def explore(explorer: SeedExplorer, iteration: int, score, budget: float | None = None) -> SeedPlan:
    """Draft what the planner wants; `score(prompt, seed)` is a value, or None for a failure."""
    planner = explorer.begin(iteration, budget)
    made = []
    while drafts := planner.next_round():
        for draft in drafts:
            value = score(draft.prompt_id, draft.seed_index)
            planner.observe(draft, value)
            error = "broken" if value is None else None
            value = value or 0.0
            made.append(
                Candidate(draft.prompt_id, draft.seed_index, draft.fidelity, 0, value, value == 1, error, 0)
            )
    return explorer.finish(iteration, planner, made)


def rescored(plan: SeedPlan, explorer: SeedExplorer, score) -> list[Candidate]:
    drafts = explorer.monitored(plan)
    return [
        Candidate(d.prompt_id, d.seed_index, d.fidelity, 1, value, value == 1, None, MONITOR_ROUND)
        for d in drafts
        for value in [score(d.prompt_id, d.seed_index)]
    ]


def rolled(plan: SeedPlan, score) -> dict[tuple[int, int], Score]:
    return {
        (p, s): Score(score(p, s), score(p, s) == 1, "") for p, seeds in plan.seeds.items() for s in seeds
    }


def rising(prompt: int, seed: int) -> float:
    return seed / 8


def falling(prompt: int, seed: int) -> float:
    return 1 - seed / 8


def test_the_extremes_of_each_prompt_are_kept():
    plan = explore(SeedExplorer(make_config(), [4, 5]), 1, rising)
    assert plan.seeds == {4: (0, 7), 5: (0, 7)}
    assert plan.explored_score[4, 7] == 7 / 8
    assert plan.pool[4] == pytest.approx((np.arange(8).mean() / 8, np.arange(8).std() / 8))


def test_a_budget_of_zero_gives_plain_seeds():
    plan = explore(SeedExplorer(make_config(), [4, 5]), 1, rising, budget=0)
    assert plan.seeds == {4: (0, 1), 5: (0, 1)}
    assert plan.figures["prompts_unexplored"] == 2
    assert plan.explored_score == {}


def test_a_scorer_that_fails_on_half_costs_those_drafts_only():
    plan = explore(SeedExplorer(make_config(), [4, 5]), 1, lambda p, s: None if s % 2 else s / 8)
    assert plan.seeds == {4: (0, 6), 5: (0, 6)}
    assert plan.figures["draft_errors"] == plan.figures["drafts"] / 2
    assert (4, 1) not in plan.explored_score


def test_the_exact_signal_learns_from_exact_matches():
    config = make_config().model_dump() | {"reward": {"signal": "exact"}}
    explorer = SeedExplorer(RunConfig.model_validate(config), [4, 5])
    plan = explore(explorer, 1, lambda p, s: 1.0 if s == 5 else 0.9)
    assert plan.seeds == {4: (0, 5), 5: (0, 5)}


def test_the_monitor_scores_again_what_the_rollout_does_not():
    explorer = SeedExplorer(make_config(monitor_prompts=1), [4, 5])
    plan = explore(explorer, 1, rising)
    drafts = explorer.monitored(plan)
    assert [(d.prompt_id, d.seed_index, d.fidelity) for d in drafts] == [(4, s, "full") for s in range(1, 7)]


@pytest.mark.parametrize(("now", "trusted", "spearman"), [(rising, True, 1.0), (falling, False, -1.0)])
def test_ranks_that_turn_round_are_not_trusted(now, trusted, spearman):
    explorer = SeedExplorer(make_config(monitor_prompts=2), [4, 5])
    plan = explore(explorer, 3, rising)
    review = explorer.review(plan, rescored(plan, explorer, now), rolled(plan, now))
    assert review is not None
    assert (review.trusted, review.agreement.spearman) == (trusted, pytest.approx(spearman))
    # Weights that did not move are worth a word too.
    assert [kind for kind, _ in review.notes] == ["staleness"]
    assert ("may not be moving" in review.notes[0][1]) == trusted


def test_ranks_that_mostly_hold_need_no_word():
    explorer = SeedExplorer(make_config(), [4, 5])
    plan = explore(explorer, 3, rising)

    def shaken(prompt: int, seed: int) -> float:
        return {2: 3, 3: 2}.get(seed, seed) / 8

    review = explorer.review(plan, rescored(plan, explorer, shaken), rolled(plan, shaken))
    assert review is not None
    assert review.notes == ()
    assert 0.9 < (review.agreement.spearman or 0) < 1


def test_a_few_ranks_that_turn_round_refuse_nothing():
    explorer = SeedExplorer(make_config(monitor_prompts=1), [4, 5])
    plan = explore(explorer, 3, rising)
    reviews = [
        explorer.review(plan, rescored(plan, explorer, falling), rolled(plan, falling)) for _ in range(2)
    ]
    # Eight candidates of one prompt are too few; with those of the next review they are enough.
    assert [review.trusted for review in reviews if review] == [True, False]


def test_equal_exact_matches_are_no_sign_of_weights_that_stand_still():
    config = make_config(monitor_prompts=2).model_dump() | {"reward": {"signal": "exact"}}
    explorer = SeedExplorer(RunConfig.model_validate(config), [4, 5])
    plan = explore(explorer, 3, lambda p, s: 1.0 if s == 5 else s / 10)

    def moved(prompt: int, seed: int) -> float:
        return 1.0 if seed == 5 else seed / 10 + 0.01

    review = explorer.review(plan, rescored(plan, explorer, moved), rolled(plan, moved))
    assert review is not None
    assert (review.agreement.spearman, review.notes) == (pytest.approx(1.0), ())


def test_without_a_monitor_there_is_nothing_to_review():
    explorer = SeedExplorer(make_config(monitor_prompts=0), [4, 5])
    plan = explore(explorer, 1, rising)
    assert explorer.monitored(plan) == []
    assert explorer.review(plan, [], rolled(plan, rising)) is None


def test_a_preview_is_used_once_it_has_proven_itself():
    config = make_config(fidelities=("full", "preview-4"), candidates=40)
    explorer = SeedExplorer(config, [4, 5])
    used = []
    for iteration in range(1, 6):
        plan = explore(explorer, iteration, lambda p, s: s / 40)
        used.append({draft.fidelity for draft in plan.candidates})
        again = rescored(plan, explorer, lambda p, s: s / 40)
        explorer.review(plan, again, rolled(plan, lambda p, s: s / 40))
    assert used[0] == {"full"}
    assert used[-1] == {"preview-4"}


def test_a_preview_that_predicts_nothing_is_never_used():
    explorer = SeedExplorer(make_config(fidelities=("full", "preview-4"), candidates=40), [4, 5])
    for iteration in range(1, 6):
        plan = explore(explorer, iteration, lambda p, s: s / 40)
        assert {draft.fidelity for draft in plan.candidates} == {"full"}
        again = [
            Candidate(d.prompt_id, d.seed_index, d.fidelity, 1, value, False, None, MONITOR_ROUND)
            for d in explorer.monitored(plan)
            for value in [d.seed_index / 40 if d.fidelity == "full" else (d.seed_index * 17 % 40) / 40]
        ]
        explorer.review(plan, again, rolled(plan, lambda p, s: s / 40))


def test_a_noise_aware_choice_discounts_scores_that_rarely_come_true():
    explorer = SeedExplorer(make_config(noise_aware=True, monitor_prompts=2), [4, 5])

    def drafted(prompt: int, seed: int) -> float:
        return [0.0, 0.5, 0.5, 0.5, 0.5, 0.8, 1.0, 1.0][seed]

    def full(prompt: int, seed: int) -> float:
        # What drafts score 1 does not come true; 0.8 does.
        return [0.0, 0.5, 0.5, 0.5, 0.5, 0.8, 0.4, 0.4][seed]

    for iteration in range(1, 6):
        plan = explore(explorer, iteration, drafted)
        explorer.review(plan, rescored(plan, explorer, full), rolled(plan, full))
    assert explore(explorer, 6, drafted).seeds == {4: (0, 5), 5: (0, 5)}


def test_the_state_goes_through_json_and_changes_no_plan():
    first = SeedExplorer(make_config(monitor_prompts=2), [4, 5])
    for iteration in (1, 2, 3):
        plan = explore(first, iteration, lambda p, s: ((p + s) % 4) / 4)
        first.review(plan, rescored(plan, first, rising), rolled(plan, rising))
        first.forecast.add_window(2.0)
        first.forecast.add_drafts(1.0, 10)
    second = SeedExplorer(make_config(monitor_prompts=2), [4, 5])
    second.restore(json.loads(json.dumps(first.state())))
    plans = [explore(explorer, 4, lambda p, s: ((p + s) % 5) / 5, budget=9) for explorer in (first, second)]
    assert plans[0] == plans[1]
    assert first.forecast.budget(3) == second.forecast.budget(3) == pytest.approx(60)


def test_a_plan_goes_through_json():
    plan = explore(SeedExplorer(make_config(), [4, 5]), 1, lambda p, s: None if s == 1 else s / 8)
    for there in (plan, SeedPlan(1, {4: (0,)}).in_place_of(plan)):
        assert plan_from_json(json.loads(json.dumps(plan_to_json(there)))) == there
    older = plan_to_json(plan)
    del older["superseded"]
    assert plan_from_json(json.loads(json.dumps(older))) == plan


def superseded(explorer: SeedExplorer, stale, anew, drafts: int = 8) -> SeedPlan:
    """A plan drafted anew by `anew`, in place of one that `stale` drafted."""
    refused = explore(explorer, 3, stale)
    plan = explore(explorer, 3, anew, budget=drafts)
    newer = tuple(replace(draft, policy_version=1) for draft in plan.candidates)
    return replace(plan, candidates=newer).in_place_of(refused)


@pytest.mark.parametrize(("now", "trusted"), [(falling, False), (lambda p, s: s / 9, True)])
def test_refused_drafts_are_reviewed_by_what_was_drafted_in_their_place(now, trusted):
    explorer = SeedExplorer(make_config(allocation="uniform", monitor_prompts=2), [4, 5])
    plan = superseded(explorer, rising, now)
    drafted = {(d.prompt_id, d.seed_index) for d in plan.candidates}
    again = explorer.monitored(plan)
    # Four of eight seeds of each prompt were drafted anew.
    assert {(d.prompt_id, d.seed_index) for d in again} == {(p, s) for p in (4, 5) for s in range(4, 8)}
    assert not drafted & {(d.prompt_id, d.seed_index) for d in again}
    review = explorer.review(plan, rescored(plan, explorer, now), rolled(plan, now))
    assert review is not None
    assert (review.agreement.pairs, review.trusted) == (16, trusted)
    assert review.agreement.spearman == pytest.approx(1.0 if trusted else -1.0)


def test_refused_drafts_that_were_all_made_anew_need_no_re_score():
    explorer = SeedExplorer(make_config(allocation="uniform"), [4, 5])
    plan = superseded(explorer, rising, falling, drafts=16)
    assert explorer.monitored(plan) == []
    review = explorer.review(plan, (), rolled(plan, falling))
    assert review is not None and review.agreement.pairs == 16


def test_refused_drafts_that_gave_way_to_plain_seeds_are_reviewed():
    explorer = SeedExplorer(make_config(monitor_prompts=2), [4, 5])
    plan = explorer.plain(3).in_place_of(explore(explorer, 3, rising))
    assert {d.seed_index for d in explorer.monitored(plan)} == set(range(2, 8))
    review = explorer.review(plan, rescored(plan, explorer, rising), rolled(plan, rising))
    assert review is not None and review.agreement.spearman == pytest.approx(1.0)


def test_more_prompts_are_explored_than_kept():
    explorer = SeedExplorer(make_config(prompt_pool=2), [4, 5, 6, 7])
    plan = explore(explorer, 1, lambda p, s: float(s == 0) if p in (5, 6) else 0.0)
    assert set(plan.seeds) == {5, 6}


def test_the_forecast_is_a_median_and_knows_nothing_at_first():
    forecast = WindowForecast()
    assert forecast.budget(2) is None
    assert forecast.budget(0) == 0
    for train_s in (10, 10, 100):
        forecast.add_window(train_s)
    forecast.add_drafts(device_s=4, full_drafts=8)
    forecast.add_drafts(device_s=0, full_drafts=0)
    assert forecast.budget(3) == pytest.approx(10 * 3 / 0.5)


def test_reliability_is_measured_within_prompts():
    known = DraftReliability()
    for seed in range(40):
        # Between the prompts draft and full score go together, within them they do not.
        known.note(0, 0.1 * (seed % 2), 0.1 * (seed // 2 % 2))
        known.note(1, 0.9 + 0.1 * (seed % 2), 0.9 + 0.1 * (seed // 2 % 2))
    assert known.reliability() is None
    known.end_iteration()
    assert known.reliability() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("name", "evaluations"), [("full", 10), ("preview-1", 2), ("preview-9", 10)])
def test_what_a_fidelity_costs(name, evaluations):
    assert evaluations_of(name, 10) == evaluations
    assert preview_step("full") is None


@pytest.mark.parametrize("name", ["preview-10", "preview-0", "preview", "draft", "preview-x", ""])
def test_an_unknown_fidelity_is_refused(name):
    with pytest.raises(ValueError, match="is unknown"):
        evaluations_of(name, 10)
