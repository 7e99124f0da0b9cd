"""Exploration on local processes: drafts beside training, re-scores, fresh drafts, losses."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from gpu_runtime.exploration import monitor
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import SeedPlan, plan_from_json, plan_to_json
from gpu_runtime.runtime import Rollout, Runtime
from storage.errors import RewardError
from tests.live_workers import worker_process

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("even_plans")]

# Drafts are counted and all of them made: the plan follows from the configuration alone.
SETTINGS = [
    "sampling.batch_size=4",
    "runtime.cluster=local",
    "exploration.strategy=stale",
    "exploration.candidates=8",
    "exploration.drafts=24",
    "exploration.stop_with_training=false",
    "exploration.min_spearman=-1",
]


def iterate(runtime: Runtime, plan: SeedPlan) -> tuple[Rollout, list, SeedPlan]:
    """Roll out, reward and train, the last two beside exploring, as the flow does."""
    following = plan.iteration + 1
    ahead = runtime.ahead(following)
    rolled = runtime.rollout(plan, ahead)
    found: list[SeedPlan] = []
    exploring = threading.Thread(target=lambda: found.append(runtime.explore(following, ahead)))
    exploring.start()
    scores = runtime.reward(rolled)
    runtime.train(rolled, scores)
    exploring.join(200)
    assert found
    return rolled, scores, found[0]


def signals(scores) -> list[float]:
    return [score.value for score in scores]


def test_seeds_are_chosen_from_drafts_of_the_last_rollouts_weights(fresh):
    assert fresh.explore(1).candidates == ()  # no window yet
    fresh.collect()
    _, _, plan = iterate(fresh, fresh.explore(1))
    states = {(i.worker, i.state) for i in fresh.collect().intervals}
    assert {("spot-0", "explore"), ("spot-1", "explore"), ("reserved-0", "train")} <= states
    assert ("reserved-0", "explore") not in states
    assert plan.iteration == 2 and len(plan.candidates) == 24 == plan.figures["drafts"]
    assert {draft.policy_version for draft in plan.candidates} == {0}
    for prompt, seeds in plan.seeds.items():
        drafted = {d.seed_index: d.value for d in plan.candidates if d.prompt_id == prompt}
        assert set(seeds) <= set(drafted) and len(seeds) == 4
        assert {max(drafted.values()), min(drafted.values())} <= {drafted[seed] for seed in seeds}
    assert plan_from_json(plan_to_json(plan)) == plan


def test_the_review_compares_drafts_with_fresh_scores_of_the_same_seeds(fresh):
    rolled, scores, plan = iterate(fresh, fresh.explore(1))
    first = fresh.review(rolled, scores, plan)
    assert first.rescored == () and "spearman" not in first.figures
    assert first.figures["spread_rollout"] == pytest.approx(
        np.mean([np.var(signals(scores)[place : place + 4]) for place in range(0, 16, 4)])
    )
    rolled, scores, following = iterate(fresh, plan)
    review = fresh.review(rolled, scores, following)
    # One prompt is monitored: its drafts that were not kept.
    (prompt,) = {draft.prompt_id for draft in review.rescored}
    drafted = {d.seed_index for d in plan.candidates if d.prompt_id == prompt}
    assert {d.seed_index for d in review.rescored} == drafted - set(plan.seeds[prompt])
    assert {(d.round, d.policy_version) for d in review.rescored} == {(MONITOR_ROUND, 1)}
    assert -1 <= review.figures["spearman"] <= 1
    assert 0 <= review.figures["draft_error"] <= 1
    assert review.figures["drafts"] == 24
    assert review.next_plan is following


def test_drafts_begin_beside_the_rollout_and_the_plan_is_the_one_of_drafts_after_it(fresh, begin_again):
    first = fresh.explore(1)
    fresh.collect()
    began: list[float] = []
    rolled = fresh.rollout(first, fresh.ahead(2))
    began += [i.started_at for i in fresh.collect().intervals if i.state == "explore"]
    assert began and fresh._search._begun is not None
    scores = fresh.reward(rolled)
    beside = fresh.explore(2, fresh.ahead(2))
    fresh.train(rolled, scores)
    blobs = fresh.blobs()
    begin_again()
    again = fresh.rollout(fresh.explore(1))  # nothing drafts beside it
    assert [d.sample.request for d in again.delivered] == [d.sample.request for d in rolled.delivered]
    assert fresh.reward(again) == scores
    assert fresh.explore(2, fresh.ahead(2)) == beside
    fresh.train(again, scores)
    assert fresh.blobs() == blobs


def test_fresh_drafts_use_every_device_and_foretell_the_rollout(fresh):
    fresh.collect()
    plan = fresh.explore_anew(fresh.explore(1))
    states = {(i.worker, i.state) for i in fresh.collect().intervals}
    assert {("reserved-0", "explore"), ("spot-0", "explore"), ("spot-1", "explore")} <= states
    rolled = fresh.rollout(plan)
    for delivered, score in zip(rolled.delivered, fresh.reward(rolled), strict=True):
        request = delivered.sample.request
        assert plan.explored_score[request.prompt_id, request.seed_index] == score.value


def test_untrusted_drafts_are_refused_and_drafted_anew(fresh, monkeypatch):
    rolled, scores, plan = iterate(fresh, fresh.explore(1))
    fresh.review(rolled, scores, plan)
    rolled, scores, following = iterate(fresh, plan)
    # Ranks that nothing could satisfy.
    strict = fresh.config.exploration.model_copy(update={"min_spearman": 1.0})
    monkeypatch.setattr(fresh._search._explorer._monitor, "_settings", strict)
    monkeypatch.setattr(monitor, "_ENOUGH_PAIRS", 1)
    upside_down = [replace(score, value=1 - score.value) for score in scores]
    review = fresh.review(rolled, upside_down, following)
    assert review.next_plan is not None and review.next_plan.refused
    (note,) = review.notes
    assert note[0] == "staleness" and "redrafted" in note[1]
    again = fresh.explore_anew(review.next_plan)
    assert not again.refused and {d.policy_version for d in again.candidates} == {2}
    assert again.superseded == following.candidates
    # The refused drafts have been made anew, or are scored again: the next plan is reviewed as any other.
    rolled, scores, following = iterate(fresh, again)
    review = fresh.review(rolled, scores, following)
    assert "spearman" in review.figures
    assert {d.policy_version for d in review.rescored} <= {2}
    assert review.next_plan is not None and review.next_plan.refused


def test_the_flow_waits_for_a_chunk_and_not_for_a_draft(fresh, monkeypatch):
    settings = fresh.config.exploration.model_copy(
        update={"stop_with_training": True, "drafts": 400, "candidates": 100}
    )
    monkeypatch.setattr(fresh._search, "_settings", settings)
    monkeypatch.setattr(fresh._search._explorer, "_settings", settings)
    rolled = fresh.rollout(fresh.explore(1))
    scores = fresh.reward(rolled)
    found: list[SeedPlan] = []
    exploring = threading.Thread(target=lambda: found.append(fresh.explore(2, fresh.ahead(2))))
    exploring.start()
    fresh.train(rolled, scores)
    exploring.join(200)
    (plan,) = found
    assert len(plan.candidates) < 400
    assert all(len(seeds) == 4 for seeds in plan.seeds.values())
    assert len(fresh.rollout(plan).delivered) == 16


def test_a_reward_that_fails_ends_the_drafts_beside_it(fresh, monkeypatch):
    settings = fresh.config.exploration.model_copy(update={"drafts": 400, "candidates": 100})
    monkeypatch.setattr(fresh._search, "_settings", settings)
    monkeypatch.setattr(fresh._search._explorer, "_settings", settings)
    rolled = fresh.rollout(fresh.explore(1), fresh.ahead(2))
    found: list[SeedPlan] = []
    exploring = threading.Thread(target=lambda: found.append(fresh.explore(2, fresh.ahead(2))))
    exploring.start()
    scores = [one.score for one in rolled.delivered if one.score is not None]
    judged = fresh._scoring.wait_for(scores)
    broken = lambda wanted: [replace(score, error="no") for score in judged[: len(wanted)]]  # noqa: E731
    monkeypatch.setattr(fresh._scoring, "wait_for", broken)
    with pytest.raises(RewardError, match="failed on all 16 images"):
        fresh.reward(rolled)
    exploring.join(200)
    assert len(found[0].candidates) < 400


def test_a_killed_drafter_costs_no_draft_and_is_replaced(fresh, begin_again):
    """Last but one in this file: workers have other names afterwards."""
    _, _, undisturbed = iterate(fresh, fresh.explore(1))
    begin_again()
    kill = fresh._fleet.enter

    def enter(worker, state):
        kill(worker, state)
        if (worker, state) == ("spot-0", "explore"):
            os.kill(worker_process("spot-0").pid, signal.SIGKILL)

    fresh._fleet.enter = enter
    try:
        _, _, plan = iterate(fresh, fresh.explore(1))
    finally:
        fresh._fleet.enter = kill
    assert fresh.lost_workers == ["spot-0"]
    assert plan == undisturbed
    assert {d.worker for d in fresh.rollout(plan).delivered} <= {"reserved-0", "spot-1", "spot-0.1"}


def test_without_a_device_to_draft_the_plan_is_plain_and_says_so_once(fresh, monkeypatch):
    """Last in this file: there are no spot workers afterwards."""
    monkeypatch.setattr(fresh._fleet._provisioner, "fill", lambda *_, **__: [])  # no instance is to be had
    rolled = fresh.rollout(fresh.explore(1))
    scores = fresh.reward(rolled)
    for device in fresh._fleet.drafters(fresh._current.version):
        os.kill(worker_process(device.name).pid, signal.SIGKILL)
    deadline = time.monotonic() + 200
    while fresh._fleet.drafters(fresh._current.version):
        # Who is dead is noticed by the next call.
        assert time.monotonic() < deadline
        assert all(len(seeds) == 4 for seeds in fresh.explore(2, fresh.ahead(2)).seeds.values())
    plans = [fresh.explore(2, fresh.ahead(2)), fresh.explore(2, fresh.ahead(2))]
    assert [set(plan.seeds.values()) for plan in plans] == [{(0, 1, 2, 3)}] * 2
    (note,) = plans[0].notes
    assert note[0] == "exploration" and "its seeds are plain" in note[1]
    assert plans[1].notes == ()
    fresh.train(rolled, scores)
