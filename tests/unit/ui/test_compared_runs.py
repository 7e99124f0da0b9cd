"""Runs beside each other, against figures worked by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from ui.pages.convergence.charts import mean_over_seeds
from ui.pages.runs.data import shared_target, time_to_score


def courses() -> pd.DataFrame:
    rows = [
        ("a", 0, 0.2, 10.0, 1.0), ("a", 10, 0.5, 110.0, 11.0), ("a", 20, 0.79, 210.0, 21.0),
        ("b", 0, 0.4, 5.0, 2.0), ("b", 10, 0.8, 55.0, 22.0),
        ("c", 0, 0.1, 1.0, 0.5),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["run_id", "iteration", "score", "elapsed_s", "usd"])


def test_time_to_a_score_goes_from_the_untouched_model_to_the_first_evaluation_at_or_above_it():
    found = time_to_score(courses(), ["b", "a", "c"], "score", 0.5).set_index("run_id")
    assert list(found.index) == ["b", "a", "c"]
    assert found["reached"].tolist() == [True, True, False]
    assert found.loc["a", ["iteration", "elapsed_s", "usd"]].tolist() == [10, 100, 10]
    assert found.loc["b", ["iteration", "elapsed_s", "usd"]].tolist() == [10, 50, 20]
    assert math.isnan(float(found["iteration"].tolist()[2]))
    assert found["best"].tolist() == [0.8, 0.79, 0.1]


def test_a_run_without_scores_has_not_reached_any():
    found = time_to_score(courses(), ["gone"], "score", 0.0)
    assert found["reached"].tolist() == [False]


def test_the_shared_target_is_the_lowest_of_the_best_scores_and_all_reach_it():
    two = courses().query("run_id != 'c'")
    assert shared_target(two, "score") == 0.79
    assert bool(time_to_score(two, ["a", "b"], "score", 0.79)["reached"].all())
    assert shared_target(courses().head(0), "score") == 0.0


def test_the_interval_over_seeds():
    rows = [("a", 0, 0.4), ("b", 0, 0.5), ("c", 0, 0.6), ("a", 10, 0.5), ("b", 10, 0.7), ("c", 20, 0.9)]
    frame = mean_over_seeds(pd.DataFrame(rows, columns=["run_id", "iteration", "score"]), "score")
    assert frame["iteration"].tolist() == [0], "the only iteration that all three have evaluated"
    # Deviation 0.1, so 4.303 * 0.1 / sqrt(3) with two degrees of freedom.
    assert frame["mean"].tolist() == pytest.approx([0.5])
    assert frame["low"].tolist() == pytest.approx([0.5 - 0.24843], abs=1e-4)
    assert frame["high"].tolist() == pytest.approx([0.5 + 0.24843], abs=1e-4)


def test_the_interval_ends_where_scores_end_and_one_run_has_none():
    rows = [("a", 0, 0.1), ("b", 0, 0.9)]
    frame = mean_over_seeds(pd.DataFrame(rows, columns=["run_id", "iteration", "score"]), "score")
    assert (frame["low"].tolist(), frame["high"].tolist()) == ([0.0], [1.0])
    one = pd.DataFrame(rows[:1], columns=["run_id", "iteration", "score"])
    assert mean_over_seeds(one, "score").empty
