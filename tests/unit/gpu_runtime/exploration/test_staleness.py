"""Rank agreement against values worked out by hand and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from gpu_runtime.exploration.monitor import compare


def test_one_prompt_without_ties_by_hand():
    # ranks 1 2 3 4 against 2 1 4 3: 1 - 6 * 4 / (4 * 15) = 0.6; pairs: 4 concordant, 2 discordant.
    found = compare({0: ([0.1, 0.2, 0.3, 0.4], [0.2, 0.1, 0.4, 0.3])}, 2)
    assert found.spearman == pytest.approx(0.6)
    assert found.kendall == pytest.approx(2 / 6)
    assert found.pairs == 4
    # Stale scores keep the first and the last; fresh ones the second and the third.
    assert found.kept_overlap == 0.0


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_one_prompt_is_what_scipy_says(levels):
    generator = np.random.default_rng(levels)
    stale = generator.integers(levels, size=30) / levels
    fresh = np.clip(stale + generator.normal(0, 0.2, 30), 0, 1).round(3)
    found = compare({7: (stale, fresh)}, 8)
    assert found.spearman == pytest.approx(spearmanr(stale, fresh)[0])
    assert found.kendall == pytest.approx(kendalltau(stale, fresh)[0])


def test_prompts_of_different_difficulty_do_not_look_alike():
    # Over both prompts together the scores correlate strongly, within each not at all.
    easy = ([0.9, 0.8, 0.9, 0.8], [0.9, 0.9, 0.8, 0.8])
    hard = ([0.1, 0.2, 0.1, 0.2], [0.1, 0.1, 0.2, 0.2])
    assert compare({0: easy, 1: hard}, 2).spearman == pytest.approx(0.0)


def test_a_prompt_whose_scores_are_all_equal_says_nothing():
    assert compare({0: ([0.0] * 4, [0.0] * 4)}, 2).spearman is None
    alone = compare({0: ([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0])}, 2).spearman
    joined = {0: ([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]), 1: ([0.0] * 4, [0.0] * 4)}
    assert compare(joined, 2).spearman == pytest.approx(alone)


def test_nothing_moved():
    found = compare({0: ([0.0, 1.0, 0.5], [0.0, 1.0, 0.5])}, 2)
    assert (found.spearman, found.kept_overlap) == (pytest.approx(1.0), 1.0)


def test_as_many_candidates_as_are_kept_say_nothing_of_the_choice():
    assert compare({0: ([0.0, 1.0], [1.0, 0.0])}, 2).kept_overlap is None
