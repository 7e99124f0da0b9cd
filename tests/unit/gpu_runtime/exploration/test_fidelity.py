"""How far drafts can be trusted: previews that prove themselves, staleness, expected scores."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpu_runtime.exploration.draft_planner import Arm
from gpu_runtime.exploration.fidelity import (
    FULL,
    DraftReliability,
    MeasuredFidelities,
    costs_of,
    denoising_steps,
    own_schedule,
    preview_step,
)
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate
from storage.config.run_config import SamplingConfig
from tests.tiny_exploration import explore, explorer_of, make_config, rescored, rising, rolled


def test_a_preview_is_used_once_it_has_proven_itself():
    config = make_config(fidelities=("full", "preview-4"), candidates=40)
    explorer = explorer_of(config)
    used = []
    for iteration in range(1, 6):
        plan = explore(explorer, iteration, lambda p, s: s / 40)
        used.append({draft.fidelity for draft in plan.candidates})
        again = rescored(plan, explorer, lambda p, s: s / 40)
        explorer.review(plan, again, rolled(plan, lambda p, s: s / 40))
    assert used[0] == {"full"}
    assert used[-1] == {"preview-4"}


def test_a_preview_that_predicts_nothing_is_never_used():
    explorer = explorer_of(make_config(fidelities=("full", "preview-4"), candidates=40))
    for iteration in range(1, 6):
        plan = explore(explorer, iteration, lambda p, s: s / 40)
        assert {draft.fidelity for draft in plan.candidates} == {"full"}
        again = [
            Candidate(d.prompt_id, d.seed_index, d.fidelity, 1, value, False, None, MONITOR_ROUND)
            for d in explorer.monitored(plan)
            for value in [d.seed_index / 40 if d.fidelity == "full" else (d.seed_index * 17 % 40) / 40]
        ]
        explorer.review(plan, again, rolled(plan, lambda p, s: s / 40))


def test_reliability_is_measured_within_prompts():
    known = DraftReliability()
    for seed in range(40):
        # Between the prompts draft and full score go together, within them they do not.
        known.note(0, 0.1 * (seed % 2), 0.1 * (seed // 2 % 2))
        known.note(1, 0.9 + 0.1 * (seed % 2), 0.9 + 0.1 * (seed // 2 % 2))
    assert known.reliability() is None
    known.end_iteration()
    assert known.reliability() == pytest.approx(0.0, abs=1e-9)


def test_pairs_are_forgotten_by_iterations_also_where_none_follow():
    known = DraftReliability()
    for seed in range(64):
        known.note(0, seed / 64, seed / 64)
    for _ in range(8):
        known.end_iteration()
        assert known.reliability() == pytest.approx(1.0)
    known.end_iteration()
    assert known.reliability() is None
    assert known.expected(0.5) == 0.5


def test_staleness_is_known_while_only_previews_are_drafted():
    costs = {FULL: 1.0, "preview-4": 0.5}
    known, untried = MeasuredFidelities(costs), MeasuredFidelities(costs)
    full = [0.0, 0.25, 0.75, 1.0] * 16
    hasty = [0.0, 0.75, 0.25, 1.0] * 16  # correlates by 0.75 / 1.25 = 0.6
    old = [0.0, 0.75, 1.0, 0.25] * 16  # by 0.1875 / 0.625 = 0.3
    assert known.arms() == [Arm()]
    for score, haste, truth in zip(full, hasty, full, strict=True):
        known.note(FULL, 0, score, truth)
        known.note("preview-4", 0, haste, truth, fresh=True)
        untried.note("preview-4", 0, haste, truth, fresh=True)
    known.end_iteration()
    untried.end_iteration()
    assert [arm.reliability for arm in known.arms()] == pytest.approx([1.0, 0.36])
    assert untried.arms()[0].reliability == 1.0, "nothing is known of age alone"
    for _ in range(9):  # in use: no full draft is made any more, and weights have begun to move
        for score, haste, truth in zip(old, hasty, full, strict=True):
            known.note("preview-4", 0, score, truth)
            known.note("preview-4", 0, haste, truth, fresh=True)
        known.end_iteration()
    assert [(arm.fidelity, arm.cost) for arm in known.arms()] == list(costs.items())
    assert [arm.reliability for arm in known.arms()] == pytest.approx([0.09 / 0.36, 0.09])
    other = MeasuredFidelities(costs)
    other.restore(json.loads(json.dumps(known.state())))
    assert other.arms()[0] == known.arms()[0]


def test_a_preview_in_use_is_measured_under_equal_weights_too():
    explorer = explorer_of(make_config(fidelities=("full", "preview-4")))
    plan = explore(explorer, 1, rising)
    used = tuple(replace(draft, fidelity="preview-4") for draft in plan.candidates)
    drafts = explorer.monitored(replace(plan, candidates=used))
    assert sorted((d.seed_index, d.fidelity) for d in drafts) == sorted(
        [(seed, "full") for seed in range(1, 7)] + [(seed, "preview-4") for seed in range(8)]
    )


def test_the_past_remembers_the_full_score_to_expect_of_a_preview():
    config = make_config(fidelities=("full", "preview-4"), candidates=40)
    explorer = explorer_of(config)

    def full(prompt: int, seed: int) -> float:
        return seed / 40

    for iteration in range(1, 4):
        plan = explore(explorer, iteration, full)
        again = [
            replace(draft, value=draft.value / 4) if draft.fidelity == "preview-4" else draft
            for draft in rescored(plan, explorer, full)
        ]
        explorer.review(plan, again, rolled(plan, full))
    plan = explore(explorer, 4, lambda p, s: s / 160)
    assert {draft.fidelity for draft in plan.candidates} == {"preview-4"}
    assert max(draft.value for draft in plan.candidates) < 0.25
    assert max(explorer._history.past([4], 5).own[4][0]) > 0.6


ODE = SamplingConfig(sde="none")


@pytest.mark.parametrize(
    ("name", "evaluations", "steps"),
    [("full", 10, 10), ("preview-1", 2, 1), ("preview-9", 10, 9), ("steps-1", 1, 1), ("steps-9", 9, 9)],
)
def test_what_a_fidelity_costs(name, evaluations, steps):
    assert costs_of([name], ODE) == {name: evaluations / 10}
    assert denoising_steps(name, 10) == steps
    assert (preview_step(name) > 0) == name.startswith("preview")
    assert (own_schedule(name) > 0) == name.startswith("steps")


@pytest.mark.parametrize(
    "name", ["preview-10", "preview-0", "preview", "draft", "preview-x", "", "steps-10", "steps-0", "steps"]
)
def test_an_unknown_fidelity_is_refused(name):
    with pytest.raises(ValueError, match="is unknown"):
        costs_of([name], ODE)


@pytest.mark.parametrize("sde", ["flow", "cps"])
def test_a_schedule_of_its_own_needs_the_ode(sde):
    with pytest.raises(ValueError, match=f"needs sampling.sde=none, not {sde}"):
        costs_of(["full", "steps-5"], SamplingConfig(sde=sde))


def test_drafts_of_two_kinds_are_never_alike_to_the_scheduler():
    assert costs_of(["preview-5", "steps-6"], ODE) == {"preview-5": 0.6, "steps-6": 0.6}
    with pytest.raises(ValueError, match="preview-5 and steps-5 take equally many denoising steps"):
        costs_of(["steps-5", "preview-5"], ODE)
