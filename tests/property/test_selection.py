"""The selected subset against brute force over all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.exploration.prediction.expected_gain import best_spread
from gpu_runtime.exploration.selection import max_variance_subset

_graded = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 2 / 3, 1.0])
_any = st.floats(0, 1, allow_nan=False)


@given(st.lists(st.one_of(_graded, _any), min_size=1, max_size=10), st.data())
def test_no_subset_has_a_larger_variance(scores, data):
    size = data.draw(st.integers(1, len(scores)))
    best = max(float(np.var(subset)) for subset in combinations(scores, size))
    chosen = max_variance_subset(scores, size)
    assert len(set(chosen.indices)) == size
    assert chosen.spread == pytest.approx(best, abs=1e-9)
    assert float(np.var([scores[i] for i in chosen.indices])) == pytest.approx(best, abs=1e-9)


@given(st.lists(_any, min_size=2, max_size=12), st.floats(0.1, 10), st.floats(-5, 5), st.data())
def test_a_change_of_scale_changes_no_variance_ratio(scores, scale, offset, data):
    """Shrinking all scores of a prompt alike cannot change what is worth keeping."""
    size = data.draw(st.integers(1, len(scores)))
    moved = [scale * score + offset for score in scores]
    kept = max_variance_subset(moved, size).indices
    best = max_variance_subset(scores, size).spread
    assert float(np.var([scores[i] for i in kept])) == pytest.approx(best, abs=1e-6)


@given(st.lists(st.lists(_any, min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 6))
def test_many_rows_at_once_agree_with_one(rows, size):
    together = best_spread(np.array(rows), size)
    single = [max_variance_subset(row, size).spread for row in rows]
    assert together == pytest.approx(single, abs=1e-9)
