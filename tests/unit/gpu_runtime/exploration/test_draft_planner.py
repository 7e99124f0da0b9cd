"""The planner's rounds, its choices and where it spends: values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu_runtime.exploration.draft_planner import Arm, Draft, DraftPlanner, PlannerSettings, ScoreHistory
from gpu_runtime.exploration.prediction.score_model import PastScores
from gpu_runtime.exploration.selection import random_spread
from tests.even_drafts import draft_evenly

FULL_ARM = Arm()
SETTINGS = PlannerSettings(group_size=4, prompts_kept=3, candidates=24, budget=36, rounds=4)


def make(prompts=(0, 1, 2), settings=SETTINGS, arms=(FULL_ARM,), past=None):
    return DraftPlanner(prompts, settings, arms, past or PastScores(), (0, 1))


def run(planner, score):
    """Draft round by round, judging each one round late; the drafts made."""
    made, waiting = [], []
    while drafts := planner.next_round():
        for draft in waiting:
            planner.observe(draft, score(draft))
        made += drafts
        waiting = drafts
    for draft in waiting:
        planner.observe(draft, score(draft))
    return made


def test_the_first_two_rounds_draft_every_prompt_alike():
    planner = make(settings=replace(SETTINGS, budget=48))
    drafts = planner.next_round() + planner.next_round()
    # A third of the budget would pay for 5 drafts of each prompt; 4 are the most.
    assert [(d.prompt_id, d.seed_index) for d in drafts] == [(p, s) for s in range(4) for p in range(3)]


def test_a_small_budget_looks_at_few_prompts():
    planner = make(range(12), settings=replace(SETTINGS, budget=18))
    drafts = planner.next_round() + planner.next_round()
    # A third of it pays for 6 drafts; one of a prompt says nothing of how much its scores differ.
    assert [(d.prompt_id, d.seed_index) for d in drafts] == [(p, s) for s in range(2) for p in range(3)]


def test_with_a_past_the_second_round_is_aimed_already():
    history = ScoreHistory()
    history.add(1, {0: [0.0] * 24, 1: [0.0] * 24, 2: [0.0, 1.0] * 12})
    planner = make(settings=replace(SETTINGS, budget=24), past=history.past((0, 1, 2), 2))
    planner.next_round()
    counts = np.bincount([draft.prompt_id for draft in planner.next_round()], minlength=3)
    assert counts[2] > counts[0] + counts[1]


def test_the_budget_is_kept():
    planner = make()
    made = run(planner, lambda draft: float(draft.seed_index % 5 == 0))
    assert len(made) == len(set(made)) <= 36
    assert not planner.can_plan
    assert planner.spent == len(made)


def test_what_cannot_gain_is_left_alone():
    """Prompt 0 has two successes and two failures at once; prompt 1 needs more; prompt 2 never succeeds."""

    def score(draft):
        if draft.prompt_id == 0:
            return float(draft.seed_index % 2)
        return float(draft.prompt_id == 1 and draft.seed_index == 9)

    history = ScoreHistory()
    history.add(1, {0: [0.0, 1.0], 1: [0.0] * 19 + [1.0], 2: [0.0] * 20})
    longer = replace(SETTINGS, candidates=48, budget=72, rounds=12)
    made = run(make(settings=longer, past=history.past(range(3), 2)), score)
    counts = [sum(d.prompt_id == p for d in made) for p in range(3)]
    # Prompt 0 has what a group holds after its first drafts; a round was planned before that was known.
    assert counts[0] <= 8
    assert counts[1] > counts[2]


def test_scores_change_the_plan_also_where_drafts_are_few_for_the_prompts():
    """Drafts for 4.7 of each of many prompts: a first look at all must leave something to aim."""
    few = PlannerSettings(group_size=2, prompts_kept=64, candidates=16, budget=448)
    plans = []
    for lucky in (range(0, 48), range(48, 96)):
        made = run(make(range(96), few), lambda draft, lucky=lucky: float(draft.prompt_id in lucky))
        plans.append([sum(draft.prompt_id == prompt for draft in made) for prompt in range(96)])
    assert plans[0] != plans[1]


def test_a_round_waits_for_the_one_before_the_last():
    planner = make()
    first = planner.next_round()
    second = planner.next_round()
    assert second
    assert not planner.can_plan
    with pytest.raises(RuntimeError, match="not scored"):
        planner.next_round()
    for draft in first:
        planner.observe(draft, 0.0)
    assert planner.can_plan


@pytest.mark.parametrize(
    ("budget", "rounds", "sizes"),
    [(36, 4, [6, 6, 9, 9, 6]), (40, 8, [6, 6, 5, 5, 5, 5, 5, 3]), (6, 8, [1] * 6)],
)
def test_rounds_divide_the_budget_and_have_a_draft_at_least(budget: float, rounds: int, sizes: list[int]):
    planner = make(settings=replace(SETTINGS, budget=budget, rounds=rounds))
    made = run(planner, lambda draft: ((draft.prompt_id * 7 + draft.seed_index * 13) % 37) / 36)
    assert [sum(planner.round_of[draft] == number for draft in made) for number in range(len(sizes))] == sizes


@pytest.mark.parametrize(("group", "drafts", "is_known"), [(2, 3, 0), (2, 4, 1), (6, 5, 0), (6, 6, 1)])
def test_four_drafts_and_a_group_tell_the_variance_of_random_groups(monkeypatch, group, drafts, is_known):
    draft_evenly(monkeypatch)
    settings = replace(SETTINGS, group_size=group, prompts_kept=1, budget=drafts)
    planner = make(prompts=(0,), settings=settings)
    assert len(run(planner, lambda draft: float(draft.seed_index))) == drafts
    assert len(planner.choose().random) == is_known


def test_the_order_of_arrival_changes_nothing():
    def score(draft):
        return ((draft.prompt_id * 7 + draft.seed_index * 13) % 11) / 10

    choices = []
    for forward in (True, False):
        planner = make()
        waiting: list[Draft] = []
        while drafts := planner.next_round():
            for draft in waiting if forward else reversed(waiting):
                planner.observe(draft, score(draft))
            waiting = drafts
        for draft in waiting if forward else reversed(waiting):
            planner.observe(draft, score(draft))
        choices.append(planner.choose())
    assert choices[0] == choices[1]


def test_a_draft_that_arrives_early_is_not_used_early():
    """Whether the last round is judged already must not change the next one."""
    plans = []
    for early in (True, False):
        planner = make()
        first, second = planner.next_round(), planner.next_round()
        for draft in first:
            planner.observe(draft, float(draft.prompt_id == 1 and draft.seed_index == 0))
        if early:
            for draft in second:
                planner.observe(draft, 1.0)
        plans.append(planner.next_round())
    assert plans[0] == plans[1]


def test_chooses_the_group_of_largest_variance(monkeypatch):
    draft_evenly(monkeypatch)
    planner = make(prompts=(5,), settings=replace(SETTINGS, prompts_kept=1, budget=8))
    run(planner, lambda draft: [0.5, 0, 1, 0.4, 0.1, 0.9, 0.5, 0.5][draft.seed_index])
    choice = planner.choose()
    assert choice.seeds == {5: (1, 2, 4, 5)}
    assert choice.spread[5] == pytest.approx(0.205)


def test_an_unreached_prompt_falls_back_to_untried_seeds():
    planner = make(settings=replace(SETTINGS, budget=0))
    assert planner.next_round() == []
    assert planner.choose().seeds == dict.fromkeys(range(3), (0, 1, 2, 3))


def test_failed_judgements_are_left_out_and_filled_up(monkeypatch):
    draft_evenly(monkeypatch)
    planner = make(prompts=(0,), settings=replace(SETTINGS, prompts_kept=1, budget=4))
    run(planner, lambda draft: None if draft.seed_index in (0, 2) else float(draft.seed_index))
    # 1 and 3 were judged; 4 and 5 are the next untried ones.
    assert planner.choose().seeds == {0: (1, 3, 4, 5)}


def test_candidates_that_are_all_equal_are_plain_seeds():
    planner = make()
    run(planner, lambda draft: 0.5)
    assert planner.choose().seeds == dict.fromkeys(range(3), (0, 1, 2, 3))


def test_of_a_larger_pool_the_prompts_that_differ_most_are_kept():
    planner = make(prompts=(0, 1, 2, 3), settings=replace(SETTINGS, prompts_kept=2))
    run(planner, lambda draft: float(draft.seed_index % 2) if draft.prompt_id in (1, 3) else 0.0)
    assert list(planner.choose().seeds) == [1, 3]


def test_an_unreliable_fidelity_is_not_used_for_being_cheap():
    cheap = Arm("preview-4", cost=0.6, reliability=0.4)
    assert {d.fidelity for d in make(arms=(FULL_ARM, cheap)).next_round()} == {"full"}
    better = replace(cheap, reliability=0.9)
    assert {d.fidelity for d in make(arms=(FULL_ARM, better)).next_round()} == {"preview-4"}


def test_drafts_count_at_their_expected_full_score():
    arm = Arm("preview-4", cost=0.5, reliability=1.0, expected=lambda score: 1.0 - score)
    planner = make(prompts=(0,), settings=replace(SETTINGS, prompts_kept=1, budget=4), arms=(arm,))
    run(planner, lambda draft: 1.0 if draft.seed_index == 3 else 0.0)
    assert planner.choose().random[0] == pytest.approx(random_spread([1] * 7 + [0], SETTINGS.group_size))


def test_a_later_draft_of_a_known_past_counts_less():
    history = ScoreHistory()
    history.add(1, {0: [1.0] * 4})
    assert history.past([0], 1).own == {0: ((1.0,) * 4, 1.0)}
    # Four drafts halve twice in twenty iterations.
    assert history.past([0], 21).own == {0: ((1.0,) * 4, 0.25)}


def test_of_many_scores_those_from_the_lowest_to_the_highest_are_remembered():
    history = ScoreHistory()
    history.add(1, {0: [float(value) for value in reversed(range(63))]})
    assert history.past([0], 1).own[0][0] == tuple(float(value) for value in range(0, 63, 2))


def test_of_more_prompts_than_are_kept_each_competes_with_the_next_best():
    bars = make(range(4), replace(SETTINGS, prompts_kept=2))._bars(np.array([0.1, 0.4, 0.2, 0.3]))
    assert bars.tolist() == [0.3, 0.2, 0.3, 0.2]
    assert make(range(4), replace(SETTINGS, prompts_kept=4))._bars(np.ones(4)).tolist() == [0.0] * 4


def test_a_long_past_counts_as_eight_drafts():
    history = ScoreHistory()
    history.add(1, {0: [0.5] * 16})
    assert history.past([0], 1).own[0][1] == 0.5


def test_other_prompts_of_the_last_iterations_say_how_prompts_differ():
    history = ScoreHistory()
    for iteration in range(1, 7):
        history.add(iteration, {iteration: [iteration / 10] * 2, 0: [0.0]})
    past = history.past([0], 7)
    assert past.others == ((0.6, 0.6), (0.5, 0.5), (0.4, 0.4), (0.3, 0.3))
    assert list(past.own) == [0]


def test_an_iteration_that_is_drafted_anew_counts_once():
    history = ScoreHistory()
    history.add(2, {1: [0.5] * 4})
    history.add(2, {1: [1.0] * 4})
    assert history.past([9], 3).others == ((1.0,) * 4,)
    other = ScoreHistory()
    other.restore(history.state())
    assert other.past([9], 3) == history.past([9], 3)


def test_the_order_of_prompts_changes_nothing():
    def score(draft):
        return ((draft.prompt_id * 7 + draft.seed_index * 13) % 11) / 10

    plans = [
        run(make(order, replace(SETTINGS, prompts_kept=6, budget=80)), score)
        for order in (range(6), (4, 1, 5, 0, 3, 2))
    ]
    assert plans[0] == plans[1]


def test_asking_for_the_choice_does_not_change_the_plan():
    plans = []
    for asked in (False, True):
        planner = make()
        made = []
        while drafts := planner.next_round():
            made += drafts
            for draft in drafts:
                planner.observe(draft, float(draft.seed_index % (draft.prompt_id + 2) == 0))
            if asked:
                planner.choose()
        plans.append(made)
    assert plans[0] == plans[1]


def test_continuous_scores_take_the_whole_budget():
    made = run(make(), lambda draft: ((draft.prompt_id * 7 + draft.seed_index * 13) % 37) / 36)
    assert len(made) == 36
