"""The signal per second of each strategy, by hand, and which one is preferred."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.exploration.prediction.contrast import ExpectedContrast
from gpu_runtime.exploration.signal_rate import (
    TRIED,
    UNTRIED,
    Contrast,
    Times,
    Workload,
    predict_drafting,
    predict_plain,
    preferred,
    with_other_trainers,
)

WORK = Workload(samples=16, most_drafts=1000)
TIMES = Times(rollout_s=0.5, judging_s=2 / 16, train_s=1.0, draft_s=1.0, rest_s=3.0, drafters=2)
RANDOM, CHOSEN = Contrast(0.25, 0.4), Contrast(1.0, 0.5)


def test_a_signal_is_the_deviation_times_the_root_of_the_live_samples():
    assert RANDOM.signal(16) == pytest.approx(0.4 * 2)
    assert CHOSEN.signal(16) == pytest.approx(0.5 * 4)


def test_groups_rolled_out_again_lose_what_does_not_hold():
    again = CHOSEN.rolled_out_again(RANDOM, 0.5)
    assert again.live == pytest.approx(0.625)
    assert again.deviation == pytest.approx(math.sqrt((0.25 + 0.16) / 2))
    assert CHOSEN.rolled_out_again(RANDOM, 1.0) == CHOSEN
    assert CHOSEN.rolled_out_again(RANDOM, 0.0) == RANDOM


@pytest.mark.parametrize(("trains_equal", "trained"), [(False, 4), (True, 16)])
def test_without_exploration_phases_follow_each_other(trains_equal, trained):
    found = predict_plain(replace(WORK, trains_equal=trains_equal), TIMES, RANDOM)
    assert found.iteration_s == pytest.approx(3 + 16 * 0.5 + 2 + trained)
    assert found.rate == pytest.approx(0.8 / found.iteration_s)


def test_training_takes_as_long_as_the_device_with_most_shards():
    assert with_other_trainers(12.0, 8, 1, 3) == pytest.approx(12 * 3 / 8)
    assert with_other_trainers(12.0, 4, 2, 3) == pytest.approx(12.0), "two of them still have two each"
    assert with_other_trainers(12.0, 4, 1, 4) == pytest.approx(3.0)


def test_drafts_fill_the_window_that_their_own_choice_lengthens():
    """With d drafts a share d / 100 of the groups is live; so the window has 2 + 16 d / 100 seconds, and two
    devices make 2 (2 + .16 d) = d drafts in it: 5.88."""
    found = predict_drafting(WORK, TIMES, RANDOM, lambda drafts: Contrast(min(1, drafts / 100), 0.5), 1.0)
    assert found.drafts == pytest.approx(4 / 0.68, rel=1e-4)
    assert found.iteration_s == pytest.approx(3 + 8 + 2 + 16 * found.drafts / 100, rel=1e-4)
    assert found.signal == pytest.approx(0.5 * math.sqrt(0.16 * found.drafts), rel=1e-4)


def test_of_two_windows_that_hold_their_drafts_it_is_the_longer_one():
    """Above 20 drafts all groups are live, and 18 s hold 36 drafts; without any, 2 s hold 4."""
    found = predict_drafting(
        WORK, TIMES, RANDOM, lambda drafts: Contrast(1.0 if drafts > 20 else 0.0, 0.5), 1.0
    )
    assert found.drafts == pytest.approx(36, rel=1e-4)


def test_drafts_trained_on_save_rollouts_and_the_wait_for_their_scores():
    found = predict_drafting(replace(WORK, most_drafts=12), TIMES, RANDOM, lambda drafts: CHOSEN)
    # A quarter is rolled out, and waited for.
    assert (found.drafts, found.contrast) == (12, CHOSEN)
    assert found.iteration_s == pytest.approx(3 + 4 * 0.5 + 0.5 + 16)
    # One of two explored prompts is trained on, and so is every second draft at most.
    halved = replace(WORK, most_drafts=12, saving=0.5)
    found = predict_drafting(halved, TIMES, RANDOM, lambda drafts: CHOSEN)
    assert found.iteration_s == pytest.approx(3 + 10 * 0.5 + 10 / 16 * 2 + 16)


def test_drafts_trained_on_shorten_their_window_until_it_agrees_with_them():
    """Of 32 samples each draft saves a second's judging, 30 s of training follow, and a draft takes 2 s:
    d = (32 - d + 30) / 2."""
    times = replace(TIMES, judging_s=1.0, train_s=30 / 32, draft_s=2.0, drafters=1)
    found = predict_drafting(Workload(32, 256), times, RANDOM, lambda drafts: CHOSEN)
    assert found.drafts == pytest.approx(62 / 3, rel=1e-4)


def test_scorers_that_are_waited_for_judge_drafts_only_in_the_training_after_it():
    """They take two seconds a sample, so ten of training hold the judging of five drafts."""
    times = replace(TIMES, judging_s=2.0, train_s=10 / 32, draft_s=0.1, drafters=10)
    found = predict_drafting(Workload(32, 256), times, RANDOM, lambda drafts: CHOSEN, 1.0)
    assert found.drafts == pytest.approx(5)
    # The monitor's re-scores are judged, too.
    found = predict_drafting(Workload(32, 256, rescored=0.25), times, RANDOM, lambda drafts: CHOSEN, 1.0)
    assert found.drafts == pytest.approx(4)
    finished = Workload(32, 20, ends_with_training=False)
    found = predict_drafting(finished, times, RANDOM, lambda drafts: CHOSEN, 1.0)
    assert found.iteration_s == pytest.approx(3 + 16 + 64 + 20 * 2)
    unwaited = predict_drafting(
        Workload(32, 256), replace(times, judging_s=0.0), RANDOM, lambda _: CHOSEN, 1.0
    )
    assert unwaited.drafts == pytest.approx(256)


def test_training_begun_beside_the_rollout_shortens_what_follows():
    begun = replace(TIMES, beside_s=4 / 16)
    assert predict_plain(WORK, begun, CHOSEN).iteration_s == pytest.approx(3 + 8 + 2 + 16 - 4)
    # A quarter is rolled out, and so is a quarter of what trains beside it.
    found = predict_drafting(replace(WORK, most_drafts=12), begun, RANDOM, lambda drafts: CHOSEN)
    assert found.iteration_s == pytest.approx(3 + 4 * 0.5 + 0.5 + 16 - 1)


def test_drafts_that_are_finished_lengthen_the_iteration():
    finished = replace(WORK, most_drafts=100, ends_with_training=False, rescored=0.1)
    planned = replace(TIMES, overhead_s=0.5)
    found = predict_drafting(finished, planned, RANDOM, lambda drafts: CHOSEN, 1.0)
    assert found.drafts == 100
    assert found.iteration_s == pytest.approx(3 + 0.5 + 8 + 110 / 2)
    assert predict_plain(finished, planned, RANDOM) == predict_plain(finished, TIMES, RANDOM)


def test_a_strategy_is_preferred_by_a_margin_which_is_larger_for_an_untried_one():
    def choose(present: str, tried: set[str], **rates: float) -> str:
        return preferred(rates, present, "plain", frozenset(tried))

    assert choose("plain", {"plain"}, plain=1.0, stale=UNTRIED - 0.01) == "plain"
    assert choose("plain", {"plain"}, plain=1.0, stale=UNTRIED + 0.01) == "stale"
    assert choose("plain", {"plain", "stale"}, plain=1.0, stale=TRIED + 0.01) == "stale"
    # What is tried needs no margin over plain to be kept, and is left as soon as it is worse.
    assert choose("stale", {"plain", "stale"}, plain=1.0, stale=1.01) == "stale"
    assert choose("stale", {"plain", "stale"}, plain=1.0, stale=1.0) == "plain"
    assert choose("stale", {"plain", "stale"}, plain=1.0, stale=1.2, off_policy=1.25) == "stale"
    assert choose("off_policy", {"plain"}, plain=1.0, stale=1.2) == "stale"


positive = st.floats(1e-3, 1e3)
contrasts = st.builds(Contrast, st.floats(0.01, 1), st.floats(0.01, 1))


@given(
    st.builds(Times, positive, positive, positive, positive, positive, st.integers(1, 16)),
    contrasts,
    contrasts,
    st.floats(1, 500),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(["plain", "stale", "off_policy"]),
    st.sets(st.sampled_from(["stale", "off_policy"])),
)
def test_none_below_plain_is_preferred_and_dearer_training_takes_longer(
    times, random, best, most, holds, ends, present, tried
):
    def chosen(drafts: float) -> Contrast:
        share = min(1.0, drafts / 200)
        live = random.live + share * max(0.0, best.live - random.live)
        return Contrast(live, random.deviation + share * max(0.0, best.deviation - random.deviation))

    work = Workload(64, most, ends_with_training=ends)
    dearer = replace(times, train_s=2 * times.train_s)
    found = {
        "plain": [predict_plain(work, one, random) for one in (times, dearer)],
        "stale": [predict_drafting(work, one, random, chosen, holds) for one in (times, dearer)],
        "off_policy": [predict_drafting(work, one, random, chosen) for one in (times, dearer)],
    }
    rates = {name: usual.rate for name, (usual, _) in found.items()}
    assert rates[preferred(rates, present, "plain", frozenset({"plain", *tried}))] >= rates["plain"]
    assert all(0 <= usual.drafts <= most for usual, _ in found.values())
    # More drafts that fit a longer window may save more rollouts than the window takes.
    for usual, slow in (found[name] for name in ("plain", "stale") + (() if ends else ("off_policy",))):
        assert slow.iteration_s >= usual.iteration_s * (1 - 1e-4)
    usual, slow = found["stale"]
    assert slow.drafts >= usual.drafts * (1 - 1e-4), "a longer window holds more drafts"
    always = predict_drafting(work, times, random, lambda drafts: best)

    def fits(drafts: float, contrast: Contrast, rolled: float) -> bool:
        """True if devices make them in the window, and scorers judge them after the rollout's samples."""
        training_s = times.train_s * work.trained(contrast)
        window_s = times.judging_s * rolled + training_s
        judged = drafts * times.judging_s <= training_s * (1 + 1e-5)
        return judged and drafts * times.draft_s <= times.drafters * window_s * (1 + 1e-5)

    if ends:
        assert fits(usual.drafts, usual.contrast, 64)
        for one in (found["off_policy"][0], always):
            assert fits(one.drafts, one.contrast, max(0.0, 64 - one.drafts))
        more = always.drafts * (1 + 1e-4)
        assert more > most or not fits(more, best, max(0.0, 64 - more)), "a larger number agrees"


def by_brute_force(scores: np.ndarray, group: int) -> float:
    """The largest variance of any group of the scores."""
    return max(float(np.var(some)) for some in combinations(scores, group))


def test_expected_contrast_is_that_of_the_best_groups_of_random_prompts():
    """Exact scores of prompts that all succeed with chance .3, groups of 2 of at most 5."""
    chance = np.random.default_rng(0)
    scores = (chance.random((400, 4)) < 0.3).astype(float)
    contrast = ExpectedContrast(scores.tolist(), 2, 3, 3, 5, (1,))
    assert contrast.random.live == pytest.approx(2 * 0.3 * 0.7, abs=0.05)
    assert contrast.random.deviation == pytest.approx(0.5)
    # A pair differs unless all five are equal.
    tables = (chance.random((400, 5)) < 0.3).astype(float)
    live = float(np.mean([by_brute_force(row, 2) > 0 for row in tables]))
    assert contrast.chosen(15).live == pytest.approx(live, abs=0.06)
    assert contrast.chosen(15).deviation == pytest.approx(0.5)
    assert contrast.chosen(5) == contrast.random, "less than a group of each prompt is no choice"
    assert contrast.random.live < contrast.chosen(10).live < contrast.chosen(15).live


def test_graded_scores_gain_deviation_and_the_best_prompts_more():
    chance = np.random.default_rng(1)
    scores = chance.normal(0.5, 0.1, (64, 4))
    contrast = ExpectedContrast(scores.tolist(), 4, 8, 8, 16, (1,))
    assert contrast.random.live == contrast.chosen(128).live == 1.0
    tables = chance.normal(0.5, 0.1, (200, 16))
    expected = float(np.mean([math.sqrt(by_brute_force(row, 4)) for row in tables[:60]]))
    assert contrast.chosen(128).deviation == pytest.approx(expected, rel=0.12)
    wider = ExpectedContrast(scores.tolist(), 4, 8, 24, 16, (1,))
    assert wider.chosen(3 * 128).deviation > contrast.chosen(128).deviation
    assert wider.chosen(24 * 3) == wider.random
    half = (wider.random.deviation + wider.chosen(24 * 4).deviation) / 2
    assert half > wider.random.deviation and wider.chosen(24 * 3.5).deviation == pytest.approx(half)
    many, few = (ExpectedContrast(scores.tolist(), 4, size, 4 * size, 16, (1,)) for size in (1024, 256))
    assert many.chosen(8 * 4096) == few.chosen(8 * 1024), "the share of the best counts"
