"""How much more chosen groups vary: one figure, wherever it is shown."""

from __future__ import annotations

import math

import pytest

from storage.record.results import VarianceGain, variance_gain


def test_it_is_that_of_the_rollouts_where_they_were_measured():
    # Draft scores of chosen groups look better than they are: they were selected for them.
    rows = [(1.0, None, 4.0), (1.0, 2.0, 4.0), (3.0, 4.0, 9.0), (math.nan, 5.0, 1.0)]
    gain = variance_gain(rows)
    assert gain is not None and gain.rolled_out
    assert gain.ratio == pytest.approx(6 / 4)


def test_where_none_was_rolled_out_it_is_that_of_the_drafts():
    assert variance_gain([(1.0, math.nan, 3.0), (1.0, None, 1.0)]) == VarianceGain(2.0, rolled_out=False)


def test_without_exploration_there_is_none():
    assert variance_gain([(None, 0.5, None)]) is None and variance_gain([]) is None
    assert variance_gain([(0.0, 0.0, 0.0)]) is None
