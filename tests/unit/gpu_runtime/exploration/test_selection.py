"""Selection against values worked out by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from gpu_runtime.exploration.selection import max_variance_subset, random_spread


def test_two_extremes_of_each_side():
    chosen = max_variance_subset([0.5, 0.0, 1.0, 0.4, 0.1, 0.9], 4)
    assert chosen.indices == (1, 2, 4, 5)
    # mean 0.5; squared distances 0.25, 0.25, 0.16, 0.16
    assert chosen.spread == pytest.approx(0.205)
    assert max_variance_subset([1e8, 1e8 + 1, 1e8 + 2], 2).spread == 1.0, "however large the scores are"


def test_a_lopsided_pool_is_not_split_in_the_middle():
    # {0, 0, 0, 1} has variance 3/16; {0, 0, 0.1, 1} less.
    assert max_variance_subset([0.0, 0.1, 0.0, 1.0, 0.0], 4).indices == (0, 2, 3, 4)


def test_equal_scores_take_the_first_seeds():
    assert max_variance_subset([0.5] * 6, 3).indices == (0, 1, 2)
    assert max_variance_subset([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], 2).indices == (0, 1)


@pytest.mark.parametrize(("scores", "size"), [([0.1], 2), ([], 1), ([0.1, 0.2], 0)])
def test_fewer_candidates_than_asked_are_refused(scores, size):
    with pytest.raises(ValueError, match="draft at least"):
        max_variance_subset(scores, size)


def test_a_score_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        max_variance_subset([0.1, float("nan")], 1)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_the_spread_of_a_random_group_is_the_mean_over_all_groups(size):
    scores = [0.0, 0.1, 0.1, 0.5, 0.9, 1.0]
    spreads = [np.var(group) for group in combinations(scores, size)]
    assert random_spread(scores, size) == pytest.approx(np.mean(spreads))
    # Nothing chosen spreads more than the best group.
    assert max(spreads) == pytest.approx(max_variance_subset(scores, size).spread)
