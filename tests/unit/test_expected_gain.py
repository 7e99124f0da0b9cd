"""What further drafts are expected to gain, and how alike prompts are: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.exploration.expected_gain import OutcomeSamples, _drawn, _uniforms
from gpu_runtime.exploration.score_history import Prediction, common_weight

COIN = Prediction(np.array([0.0, 1.0]), np.array([1e6, 1e6]))


def futures(judged=(), group_size=4, prediction=COIN):
    return OutcomeSamples(judged, prediction, group_size, "variance", (0, 1), 16)


def test_a_draw_counts_as_one_more_draft_of_its_value():
    uniforms = np.array([[0.75, 0.9, 0.99], [0.75, 0.1, 0.7]])
    # Known: one 0, one 1. Heights of the first row: 1.5 of 2, a 1; 2.7 of 3, the first again; 3.96 of 4, the
    # second again. Of the second row: 1.5, a 1; 0.3, a 0; 2.8 of 4, the first again.
    assert _drawn(np.array([1.0, 0.0]), np.ones(2), uniforms).tolist() == [[1, 1, 1], [1, 0, 1]]


def test_luck_is_stratified_and_the_same_for_more_drafts():
    few, many = _uniforms((3, 4), 2), _uniforms((3, 4), 7)
    assert np.array_equal(few, many[:, :2])
    for column in many.T:
        assert sorted((column * len(column)).astype(int)) == list(range(len(column)))
    assert not np.array_equal(few, _uniforms((3, 5), 2))


def test_unseen_scores_cannot_be_chosen_on():
    # A random group of four coin tosses has a variance of 1/4 x 3/4 on average.
    assert futures().spread(0) == pytest.approx(0.1875, abs=0.02)
    # Of an untried coin, p(1 - p) is half of that on average: weights of one draft say so little.
    unknown = Prediction(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert futures(prediction=unknown).spread(0) == pytest.approx(0.09375, abs=0.02)
    assert futures().spread(0, bar=0.2) == futures().spread(3, bar=0.2) == 0.2
    # With four drafts one sees whether the group beats another prompt's.
    assert futures().spread(4, bar=0.2) > 0.205


def test_a_first_group_is_worth_its_drafts_as_soon_as_others_may_be_ousted():
    assert futures().rates(0, 3, bar=0.2)[0] == 0
    assert futures().rates(0, 4, bar=0.2)[0] > 0


def test_a_full_group_gains_nothing():
    assert futures([0, 1, 0, 1]).rates(0, 8, bar=0.0) == pytest.approx([0.0] * 8)


def test_failures_make_the_next_success_less_likely():
    rare = Prediction(np.array([0.0, 1.0]), np.array([0.9, 0.1]))
    after = [futures([0.0] * failures, prediction=rare).rates(0, 4, bar=0.0)[0] for failures in (4, 8, 16)]
    assert after[0] > after[1] > after[2] > 0


@pytest.mark.parametrize(
    ("groups", "weight"),
    [
        # Means 1/4 and 3/4, variance within 3/14, of means (1 - 3/14) / 8.
        ([[1.0] * 2 + [0.0] * 6, [1.0] * 6 + [0.0] * 2], (3 / 14) / ((1 - 3 / 14) / 8)),
        # Alike: no prompt is to be told from another.
        ([[0.0, 1.0], [0.0, 1.0]], 16),
        # Each prompt always the same, but not as the others.
        ([[0.0] * 4, [1.0] * 4], 1),
        # Nothing is to be learned from one prompt, single scores, or scores without any difference.
        ([[0.0, 1.0, 1.0]], 4),
        ([[0.0], [1.0]], 4),
        ([[0.0] * 4, [0.0] * 4], 4),
        ([], 4),
    ],
)
def test_how_alike_prompts_are(groups, weight):
    assert common_weight(groups) == pytest.approx(weight)
