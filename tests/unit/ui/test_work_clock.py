"""A time axis without the breaks, against places worked out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ui.charts.devices import WorkClock


def times(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def test_long_breaks_are_left_out_and_moments_in_them_are_at_the_break():
    clock = WorkClock(pd.DataFrame({"started_at": times(1000, 0, 5), "ended_at": times(1010, 10, 20)}))
    assert clock.total_s == 30
    assert clock.breaks_s.tolist() == [20]
    assert clock.elapsed_s(times(-5, 0, 12, 20, 500, 1000, 1004, 2000)).tolist() == [
        0, 0, 12, 20, 20, 20, 24, 30,
    ]  # fmt: skip


def test_short_holes_stay_visible():
    clock = WorkClock(pd.DataFrame({"started_at": times(0, 30), "ended_at": times(10, 40)}))
    assert clock.breaks_s.size == 0
    assert clock.elapsed_s(times(20, 30)).tolist() == [20, 30]


def test_an_interval_inside_another_ends_nothing():
    clock = WorkClock(pd.DataFrame({"started_at": times(0, 10, 140), "ended_at": times(120, 20, 150)}))
    assert clock.breaks_s.size == 0
    assert clock.total_s == 150
