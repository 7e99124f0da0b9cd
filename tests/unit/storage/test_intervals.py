"""Means with intervals whose unit is the prompt, against values worked by hand and against coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from storage.evaluations.figures import figures_of, tagged_estimates
from storage.evaluations.separate import SeparateEvaluation, difference_of
from storage.record.records import JudgedImage
from storage.record.results import VarianceGain, variance_gain


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
    # With one prompt more at either bound: 31 of 32, and t(0.975, 31) = 2.0395.
    right, wrong = (tagged_estimates([value] * 30, [""] * 30).overall for value in (1.0, 0.0))
    half = 2.0395 * math.sqrt(31 / 32 * 1 / 32 / 32)
    assert (right.mean, right.low, right.high) == (1.0, pytest.approx(31 / 32 - half, abs=1e-5), 1.0)
    assert (wrong.mean, wrong.low, wrong.high) == (0.0, 0.0, pytest.approx(1 / 32 + half, abs=1e-5))
    difference = tagged_estimates([0.0] * 30, [""] * 30, lowest=-1.0).overall
    assert -difference.low == difference.high == pytest.approx(2.0395 * math.sqrt(2) / 32, abs=1e-5)
    single = tagged_estimates([0.5], [""]).overall
    assert single.low < 0.03
    assert single.high > 0.97


def test_no_interval_jumps_as_prompts_come_to_agree():
    lows = [tagged_estimates([1.0] * (30 - n) + [0.0] * n, [""] * 30).overall.low for n in range(4)]
    steps = -np.diff(lows)
    assert all(0.04 < step < 0.08 for step in steps)
    near, equal = (tagged_estimates([1.0] * 29 + [last], [""] * 30).overall for last in (0.999, 1.0))
    assert near.low == pytest.approx(equal.low, abs=1e-3)


def test_tags_of_one_prompt_are_not_certain():
    values = [0.0, 1.0] * 10
    alone = tagged_estimates(values, [str(number) for number in range(20)])
    together = tagged_estimates(values, [""] * 20).overall
    for found in (alone.overall, alone.over_tags):
        assert (found.low, found.high) == pytest.approx((together.low, together.high), abs=0.01)


SIZES = {
    "no tags": [60], "geneval": [80, 99, 80, 94, 100, 100], "a part of it": [14, 17, 14, 16, 17, 18],
    "ones": [1] * 24, "twos": [2] * 20, "threes": [3] * 16, "mixed": [1, 1, 2, 3, 5, 10, 30], "few": [12],
}  # fmt: skip
"""How many prompts each tag has."""


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Prompts of any difficulty, one image of some and four of others; tags differ in how hard they are."""
    draw, draws = np.random.default_rng(3), 300
    covered: dict[tuple[str, str, float], float] = {}
    for name, sizes in SIZES.items():
        for mean in (0.2, 0.5):
            means = [mean] * len(sizes) if name == "no tags" else mean + np.linspace(-0.15, 0.15, len(sizes))
            tags = [str(tag) for tag, size in enumerate(sizes) for _ in range(size)]
            truth_N = np.repeat(means, sizes)
            images_N = np.where(np.arange(len(tags)) % 2, 4, 1)
            hits = np.zeros(2)
            for _ in range(draws):
                values = draw.binomial(images_N, draw.beta(truth_N, 1 - truth_N)) / images_N
                found = tagged_estimates(values.tolist(), tags)
                for number, (true, one) in enumerate(
                    ((truth_N.mean(), found.overall), (np.mean(means), found.over_tags))
                ):
                    hits[number] += one.low <= true <= one.high
            covered[name, "overall", mean], covered[name, "over tags", mean] = hits / draws
    assert min(covered.values()) >= 0.93, min(covered.items(), key=lambda one: one[1])
    assert 0.93 <= np.mean(list(covered.values())) <= 0.97


def test_rows_of_one_text_are_images_of_one_prompt():
    hits = np.random.default_rng(5).random((60, 4)) < 0.4

    def images(rows: bool) -> list[JudgedImage]:
        return [
            JudgedImage(
                4 * n + i if rows else n, 0 if rows else i, f"sign {n}", "t", float(hit), True, "", None
            )
            for n, of_prompt in enumerate(hits)
            for i, hit in enumerate(of_prompt)
        ]

    assert figures_of(images(rows=True)) == figures_of(images(rows=False))


def test_rows_of_one_text_are_one_prompt_in_a_comparison():
    draw = np.random.default_rng(5)
    gains = draw.choice([0.0, 1.0], size=40, p=[0.7, 0.3])

    def images(shift: float, copies: int) -> list[JudgedImage]:
        return [
            JudgedImage(copies * n + row, 0, f"sign {n}", "t", shift * gain, False, "", None)
            for n, gain in enumerate(gains)
            for row in range(copies)
        ]

    found = []
    for copies in (1, 4):
        before, after = (
            (
                SeparateEvaluation(f"e{shift}", None, 0, 0, 0.0, 1.0, 0.0, 0.0, 1, None, {}, {}),
                images(shift, copies),
            )
            for shift in (0.0, 1.0)
        )
        found.append(difference_of(before, after))
    assert found[0]["score_interval"] == found[1]["score_interval"]
    assert (found[1]["pairs"], found[1]["prompts"]) == (160, 40)


@pytest.mark.parametrize(("values", "tags"), [([], []), ([0.5], ["a", "b"])])
def test_values_without_tags_are_refused(values: list[float], tags: list[str]):
    with pytest.raises(ValueError, match="one of each per prompt"):
        tagged_estimates(values, tags)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Draft scores of chosen groups look better than they are: they were selected for them.
        ([(1.0, None, 4.0), (1.0, 2.0, 4.0), (3.0, 4.0, 9.0), (math.nan, 5.0, 1.0)], VarianceGain(1.5, True)),
        ([(1.0, math.nan, 3.0), (1.0, None, 1.0)], VarianceGain(2.0, False)),
        ([(None, 0.5, None)], None),
        ([(0.0, 0.0, 0.0)], None),
        ([], None),
    ],
)
def test_the_gain_is_that_of_the_rollouts_where_they_were_measured(rows: Any, expected: VarianceGain | None):
    assert variance_gain(rows) == expected
