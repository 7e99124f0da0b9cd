"""What further drafts are expected to gain: by hand, and against enumeration of all outcomes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpu_runtime.exploration.prediction.expected_gain import (
    Segments,
    ValueCurves,
    _concave,
    best_spread,
    random_outcomes,
)
from gpu_runtime.exploration.selection import max_variance_subset


class Coin:
    """Independent drafts that score 1 with a known probability, in place of the model."""

    def __init__(self, *rates):
        self.rates = np.array(rates)

    def draws(self, uniforms_R, logits_RN, picks_RN):
        uniforms = 1 / (1 + np.exp(-logits_RN))
        return (uniforms[None] >= 1 - self.rates[:, None, None]).astype(float)


def curves(rates, judged=None, group=4, candidates=12):
    judged = judged or [()] * len(rates)
    known = [np.array(scores, dtype=float) for scores in judged]
    return ValueCurves(Coin(*rates).draws, known, group, candidates, (0, 1))


def enumerated(judged, rate, further, group):
    """Expected spread of the best group after further drafts, over all their outcomes."""
    value = 0.0
    for drawn in itertools.product((0.0, 1.0), repeat=further):
        chance = np.prod([rate if score else 1 - rate for score in drawn])
        value += float(chance) * max_variance_subset([*judged, *drawn], group).spread
    return value


def gains(found: Segments, prompt: int) -> list[float]:
    mine = found.prompt == prompt
    return np.repeat(found.rate[mine], found.drafts[mine]).tolist()


def test_the_best_spread_is_that_of_the_exact_selection():
    scores = np.round(np.random.default_rng(0).normal(size=(40, 9)), 1)
    for size in (1, 2, 5, 9):
        expected = [max_variance_subset(row, size).spread for row in scores]
        assert best_spread(scores, size) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("judged", [(), (0, 0, 1), (0, 0, 0, 0, 1)])
def test_the_gain_is_that_of_all_outcomes(judged):
    """Up to the last of seven candidates: the concave curve ends in the value of all of them."""
    found = curves([0.3], [judged], candidates=7)
    segments = found.segments(np.array([len(judged)]), np.zeros(1))
    total = sum(gains(segments, 0))
    have = max(len(judged), 4)
    start = enumerated(judged, 0.3, have - len(judged), 4)
    assert total == pytest.approx(enumerated(judged, 0.3, 7 - len(judged), 4) - start, abs=0.02)


def test_what_was_not_tried_cannot_be_selected():
    # A random group of four coin tosses has a variance of 1/4 x 3/4 on average.
    assert curves([0.5]).now()[0] == pytest.approx(0.1875, abs=0.02)
    assert curves([0.5], [(0, 1, 0, 1, 1)]).now()[0] == 0.25


@pytest.mark.parametrize(("prompts", "outcomes"), [(1, 64), (512, 32), (2000, 16)])
def test_many_prompts_have_fewer_outcomes_each(prompts: int, outcomes: int):
    assert len(curves([0.5] * prompts)._found[0][0]) == outcomes


def test_a_full_group_gains_nothing():
    assert gains(curves([0.5], [(0, 1, 0, 1)]).segments(np.array([4]), np.zeros(1)), 0) == []


def test_drafts_under_way_are_taken_into_account():
    rare = curves([0.1], [(0, 0, 0, 0)])
    at_once = gains(rare.segments(np.array([4]), np.zeros(1)), 0)
    later = gains(rare.segments(np.array([8]), np.zeros(1)), 0)
    assert len(later) == 4
    assert sum(later) < sum(at_once) / 2
    six, seven, eight = (sum(gains(rare.segments(np.array([n]), np.zeros(1)), 0)) for n in (6, 7, 8))
    assert seven == pytest.approx((six + eight) / 2), "the value of seven is not computed"


def test_a_group_of_which_others_may_be_better_gains_only_above_the_bar():
    coin = curves([0.5])
    assert gains(coin.segments(np.array([0]), np.full(1, 0.25)), 0) == []
    # Four tosses show whether the group beats another prompt's, which a blind choice does not.
    to_group = gains(coin.segments(np.array([0]), np.full(1, 0.2)), 0)
    assert sum(to_group[:4]) > 0.005


def test_several_drafts_gain_where_one_gains_nothing():
    """Rates of the smallest concave curve: nothing for one draft, .4 for two, .04 for four more."""
    found = _concave(np.array([0]), np.array([0.0]), np.array([1, 2, 6]), np.array([[0.0, 0.4, 0.44]]))
    assert found.drafts.tolist() == [2, 4]
    assert found.rate == pytest.approx([0.2, 0.01])


def test_a_curve_that_has_ended_goes_no_further():
    values = np.array([[0.0, 0.0, 0.6], [0.4, 0.5, 0.6]])
    found = _concave(np.zeros(2, int), np.zeros(2), np.array([1, 2, 6]), values)
    assert [found.drafts[found.prompt == prompt].tolist() for prompt in (0, 1)] == [[6], [1, 1, 4]]


def test_segments_are_by_falling_rate_and_equal_ones_by_prompt():
    values = np.array([[0.125, 0.25], [0.5, 0.625], [0.125, 0.25]])
    found = _concave(np.zeros(3, int), np.zeros(3), np.array([1, 2]), values)
    assert found.prompt.tolist() == [1, 0, 0, 1, 2, 2]
    assert found.drafts.tolist() == [1] * 6
    assert found.rate.tolist() == [0.5] + [0.125] * 5


def test_random_outcomes_are_stratified_and_their_own():
    chosen, logits, picks = random_outcomes((3, 4), 16, 5)
    assert chosen[[0, -1]].tolist() == [0.5 / 16, 15.5 / 16]
    for column in (*(1 / (1 + np.exp(-logits))).T, *picks.T):
        assert sorted((column * 16).astype(int)) == list(range(16))
    assert not np.array_equal(logits.argsort(axis=0), picks.argsort(axis=0)), "one does not follow the other"
    assert not np.array_equal(logits, random_outcomes((3, 5), 16, 5)[1])
