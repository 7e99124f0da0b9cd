"""Means with intervals whose unit is the prompt, against values worked by hand and against coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from storage.evaluations.intervals import tagged_estimates


def test_means_overall_over_tags_and_of_each_tag():
    found = tagged_estimates([1.0, 0.0, 0.5, 0.25], ["b", "b", "b", "a"])
    assert list(found.by_tag) == ["a", "b"]
    assert found.prompts == {"a": 1, "b": 3}
    assert found.by_tag["b"].mean == pytest.approx(0.5)
    assert found.overall.mean == pytest.approx(1.75 / 4)
    assert found.over_tags.mean == pytest.approx((0.5 + 0.25) / 2)


def test_the_same_scores_give_the_same_interval_and_a_tag_depends_on_its_own_scores_only():
    values, tags = [0.0, 1.0, 1.0, 0.5, 0.25, 0.75], ["x", "x", "x", "y", "y", "y"]
    first = tagged_estimates(values, tags)
    assert tagged_estimates(values, tags) == first
    assert tagged_estimates([*values[:3], 0.1, 0.2, 0.9], tags).by_tag["x"] == first.by_tag["x"]
    assert tagged_estimates(values[:3], tags[:3]).by_tag["x"] == first.by_tag["x"]


def test_tags_are_drawn_independently():
    # The same values in two tags: drawn in step, the mean of the tags would be as wide as one of them.
    values = [0.0, 1.0] * 50
    found = tagged_estimates(values + values, ["x"] * 100 + ["y"] * 100)
    one = found.by_tag["x"].high - found.by_tag["x"].low
    both = found.over_tags.high - found.over_tags.low
    assert both == pytest.approx(one / math.sqrt(2), rel=0.1)


def test_the_width_is_that_of_the_normal_interval_where_there_are_many_prompts():
    values = [float(value) for value in np.random.default_rng(1).random(400) < 0.3]
    found = tagged_estimates(values, [""] * 400).overall
    deviation = float(np.std(values)) / math.sqrt(400)
    assert found.low == pytest.approx(found.mean - 1.96 * deviation, abs=0.006)
    assert found.high == pytest.approx(found.mean + 1.96 * deviation, abs=0.006)


def test_prompts_that_all_agree_leave_an_interval_all_the_same():
    # 0.05 ** (1 / 30) = 0.905: were fewer right, 30 of 30 would be seen less than once in 20.
    right, wrong = (tagged_estimates([value] * 30, [""] * 30).overall for value in (1.0, 0.0))
    assert (right.mean, right.low, right.high) == (1.0, pytest.approx(0.905, abs=5e-4), 1.0)
    assert (wrong.mean, wrong.low, wrong.high) == (0.0, 0.0, pytest.approx(0.095, abs=5e-4))
    difference = tagged_estimates([0.0] * 30, [""] * 30, lowest=-1.0).overall
    assert (difference.low, difference.high) == (
        pytest.approx(-0.095, abs=5e-4),
        pytest.approx(0.095, abs=5e-4),
    )
    single = tagged_estimates([0.5], [""]).overall
    assert single.low < 0.03
    assert single.high > 0.97


def test_where_all_tags_agree_within_themselves_the_overall_interval_is_not_empty():
    found = tagged_estimates([1.0] * 20 + [0.0] * 20, ["x"] * 20 + ["y"] * 20)
    assert found.overall.mean == 0.5
    assert found.overall.low < 0.45
    assert found.overall.high > 0.55


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    draw = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        difficulty = draw.beta(2, 2, size=60)  # the prompts differ, and so do four images of each
        values = draw.binomial(4, difficulty) / 4
        found = tagged_estimates([float(value) for value in values], [""] * 60).overall
        hits += found.low <= 0.5 <= found.high
    assert 180 <= hits <= 200


@pytest.mark.parametrize(("values", "tags"), [([], []), ([0.5], ["a", "b"])])
def test_values_without_tags_are_refused(values: list[float], tags: list[str]):
    with pytest.raises(ValueError, match="one of each a prompt"):
        tagged_estimates(values, tags)
