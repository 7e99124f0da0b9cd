"""The staleness monitor: what it scores again, and what follows from the ranks."""

from __future__ import annotations

import pytest

from storage.config.run_config import RunConfig
from tests.even_drafts import draft_evenly
from tests.tiny_exploration import (
    explore,
    explorer_of,
    falling,
    make_config,
    rescored,
    rising,
    rolled,
    superseded,
)


def test_the_monitor_scores_again_what_the_rollout_does_not():
    explorer = explorer_of(make_config(monitor_prompts=1))
    plan = explore(explorer, 1, rising)
    drafts = explorer.monitored(plan)
    assert [(d.prompt_id, d.seed_index, d.fidelity) for d in drafts] == [(4, s, "full") for s in range(1, 7)]


def test_a_draft_that_failed_has_no_rank_to_check():
    explorer = explorer_of(make_config(monitor_prompts=1))
    plan = explore(explorer, 1, lambda p, s: None if s == 3 else rising(p, s))
    monitored = {(d.prompt_id, d.seed_index) for d in explorer.monitored(plan)}
    assert monitored == {(4, s) for s in range(8) if s not in (3, *plan.seeds[4])}
    plan = explore(explorer, 1, lambda p, s: None if (p, s) == (4, 3) else rising(p, s))
    assert {d.prompt_id for d in explorer.monitored(plan)} == {5}, "which has more of them"


def level(prompt: int, seed: int) -> float:
    return 0.5


@pytest.mark.parametrize(
    ("now", "trusted", "spearman"), [(rising, True, 1.0), (falling, False, -1.0), (level, False, None)]
)
def test_ranks_that_turn_round_are_not_trusted(now, trusted, spearman):
    explorer = explorer_of(make_config(monitor_prompts=2))
    plan = explore(explorer, 3, rising)
    review = explorer.review(plan, rescored(plan, explorer, now), rolled(plan, now))
    assert review is not None
    assert (review.trusted, review.agreement.spearman) == (trusted, pytest.approx(spearman))
    # Weights that did not move are worth a word too.
    assert [kind for kind, _ in review.notes] == ["staleness"]
    assert ("may not be changing" in review.notes[0][1]) == trusted


def test_drafts_that_were_all_equal_have_no_ranks_to_check():
    explorer = explorer_of(make_config(monitor_prompts=2))
    plan = explore(explorer, 3, level)
    review = explorer.review(plan, rescored(plan, explorer, level), rolled(plan, level))
    assert review is not None and (review.trusted, review.notes) == (True, ())


def test_ranks_that_mostly_hold_need_no_word():
    explorer = explorer_of(make_config())
    plan = explore(explorer, 3, rising)

    def shaken(prompt: int, seed: int) -> float:
        return {2: 3, 3: 2}.get(seed, seed) / 8

    review = explorer.review(plan, rescored(plan, explorer, shaken), rolled(plan, shaken))
    assert review is not None
    assert review.notes == ()
    assert 0.9 < (review.agreement.spearman or 0) < 1


def test_a_few_ranks_that_turn_round_refuse_nothing():
    explorer = explorer_of(make_config(monitor_prompts=1))
    plan = explore(explorer, 3, rising)
    reviews = [
        explorer.review(plan, rescored(plan, explorer, falling), rolled(plan, falling)) for _ in range(2)
    ]
    # Eight candidates of one prompt are too few; with those of the next review they are enough.
    assert [review.trusted for review in reviews if review] == [True, False]


def test_equal_exact_matches_are_no_sign_of_weights_that_stand_still():
    config = make_config(monitor_prompts=2).model_dump() | {"reward": {"signal": "exact"}}
    explorer = explorer_of(RunConfig.model_validate(config))
    plan = explore(explorer, 3, lambda p, s: 1.0 if s == 5 else s / 10)

    def moved(prompt: int, seed: int) -> float:
        return 1.0 if seed == 5 else seed / 10 + 0.01

    review = explorer.review(plan, rescored(plan, explorer, moved), rolled(plan, moved))
    assert review is not None
    assert (review.agreement.spearman, review.notes) == (pytest.approx(1.0), ())


def test_without_a_monitor_there_is_nothing_to_review():
    explorer = explorer_of(make_config(monitor_prompts=0))
    plan = explore(explorer, 1, rising)
    assert explorer.monitored(plan) == []
    assert explorer.review(plan, [], rolled(plan, rising)) is None


@pytest.mark.parametrize(("now", "trusted"), [(falling, False), (lambda p, s: s / 9, True)])
def test_refused_drafts_are_reviewed_by_what_was_drafted_in_their_place(now, trusted, monkeypatch):
    draft_evenly(monkeypatch)
    explorer = explorer_of(make_config(monitor_prompts=2))
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


def test_refused_drafts_that_were_all_made_anew_need_no_re_score(monkeypatch):
    draft_evenly(monkeypatch)
    explorer = explorer_of(make_config())
    plan = superseded(explorer, rising, falling, drafts=16)
    assert explorer.monitored(plan) == []
    review = explorer.review(plan, (), rolled(plan, falling))
    assert review is not None and review.agreement.pairs == 16


def test_refused_drafts_that_gave_way_to_plain_seeds_are_reviewed():
    explorer = explorer_of(make_config(monitor_prompts=2))
    plan = explorer.plain(3).in_place_of(explore(explorer, 3, rising))
    assert {d.seed_index for d in explorer.monitored(plan)} == set(range(2, 8))
    review = explorer.review(plan, rescored(plan, explorer, rising), rolled(plan, rising))
    assert review is not None and review.agreement.spearman == pytest.approx(1.0)
