"""The rule that calls a run hacking: the score up, the images worse, both by more than their intervals."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from storage.evaluations import quality
from storage.evaluations.quality import FigureChange, figure_changes, mean_figures, quality_verdict
from storage.record.records import JudgedImage


def pairs(prompts: int = 40, /, **figures: tuple[float, float]) -> pd.DataFrame:
    """Of each figure its mean before and after, with noise that both share, and a little that they do not."""
    rng = np.random.default_rng(0)
    rows = []
    for name, (before, after) in figures.items():
        for prompt in range(prompts):
            shared, own = rng.normal(0, 0.3 * before), rng.normal(0, 0.02 * before)
            rows.append((prompt, 0, name, before + shared, after + shared + own))
    return pd.DataFrame(rows, columns=["prompt", "seed_index", "name", "before", "after"])


def worse(**figures: tuple[float, float]) -> list[str]:
    verdict = quality_verdict(pairs(40, **figures))
    assert verdict is not None
    return [change.name for change in verdict.worse]


def is_hacking(**figures: tuple[float, float]) -> bool:
    verdict = quality_verdict(pairs(40, **figures))
    assert verdict is not None
    return verdict.is_hacking


def test_the_score_rises_and_the_truth_gets_farther_away():
    assert is_hacking(score=(0.5, 0.7), truth_distance=(0.1, 0.15))
    assert not is_hacking(score=(0.5, 0.7), truth_distance=(0.1, 0.08)), "nearer is better"
    assert not is_hacking(score=(0.5, 0.7), truth_distance=(0.1, 0.105)), "5 % of the start are tolerated"
    assert not is_hacking(score=(0.7, 0.5), truth_distance=(0.1, 0.15)), "worse, but nothing is gained by it"
    assert not is_hacking(score=(0.5, 0.5), truth_distance=(0.1, 0.15))


def test_without_a_truth_the_looks_decide_by_more_than_a_quarter():
    assert worse(score=(0.5, 0.7), edges=(0.2, 0.08), dark=(0.45, 0.93)) == ["dark", "edges"]
    assert worse(score=(0.5, 0.7), edges=(0.2, 0.16), grain=(0.02, 0.024)) == []
    assert worse(score=(0.5, 0.7), brightness=(0.5, 0.2), file_bits=(2.0, 5.0)) == [], "neither way is worse"
    assert worse(score=(0.5, 0.7), diversity_within=(1.0, 0.5)) == ["diversity_within"]


def test_with_a_truth_the_looks_are_hints_only_but_a_judge_counts():
    figures = {"score": (0.5, 0.7), "truth_distance": (0.1, 0.1), "grain": (0.02, 0.05)}
    assert worse(**figures) == []
    assert worse(**figures, judge=(0.6, 0.5)) == ["judge"]


def test_what_one_region_loses_and_another_wins_is_no_loss():
    larger = {"truth_background": (0.05, 0.07), "truth_drawn": (0.28, 0.23)}
    assert worse(score=(0.5, 0.7), truth_distance=(0.22, 0.23), **larger) == []
    assert worse(score=(0.5, 0.7), truth_distance=(0.22, 0.28), **larger) == ["truth_distance"]


def test_few_prompts_and_few_images_prove_nothing():
    few = quality_verdict(pairs(7, score=(0.5, 0.9), truth_distance=(0.1, 0.3)))
    assert few is not None and not few.is_hacking
    assert math.isinf(few.score.low)
    assert figure_changes(pairs(8, score=(0.5, 0.9)), ["score"])[0].low > 0, "eight are enough"
    assert quality_verdict(pairs(score=(0.5, 0.9))) is None, "no figure"
    assert quality_verdict(pairs(grain=(0.5, 0.9))) is None, "no score"
    assert quality_verdict(pairs(0)) is None


def test_a_change_is_of_prompts_and_paired():
    """Two images a prompt: the prompt's mean counts once; what all prompts share is no uncertainty."""
    rows = [
        (f"sign {prompt}", seed, "grain", 0.1 * prompt, 0.1 * prompt + (0.1 if seed else 0.3))
        for prompt in range(10)
        for seed in range(2)
    ]
    frame = pd.DataFrame(rows, columns=["prompt", "seed_index", "name", "before", "after"])
    [change] = figure_changes(frame, ["grain"])
    assert (change.prompts, change.before, change.after) == (10, pytest.approx(0.45), pytest.approx(0.65))
    assert (change.low, change.high) == (pytest.approx(0.2, abs=1e-6), pytest.approx(0.2, abs=1e-6))
    assert figure_changes(frame, ["grain"]) == [change], "the same resamples every time"


def test_the_interval_is_that_of_the_mean():
    frame = pairs(400, grain=(1.0, 1.0))
    [change] = figure_changes(frame, ["grain"])
    difference = (frame["after"] - frame["before"]).to_numpy(dtype=float)
    error = 1.96 * difference.std() / math.sqrt(400)
    assert change.high - change.low == pytest.approx(2 * error, rel=0.1)


def test_very_many_prompts_have_fewer_resamples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quality, "_CELLS", 22_000)
    assert [len(quality._weights.__wrapped__(prompts)) for prompts in (10, 80, 220)] == [2000, 275, 200]


def test_worsening_is_a_part_of_the_start_or_of_the_least():
    assert FigureChange("grain", 0.02, 0.03, 0.009, 0.011, 40).worsening == pytest.approx(0.5)
    assert FigureChange("edges", 0.2, 0.3, 0.09, 0.11, 40).worsening == pytest.approx(-0.5)
    assert FigureChange("dark", 0.0, 0.02, 0.01, 0.03, 40).worsening == pytest.approx(0.1), "of 0.2"
    assert FigureChange("brightness", 0.5, 0.1, -0.5, -0.3, 40).worsening == 0
    assert FigureChange("part_ocr", 0.5, 0.1, -0.5, -0.3, 40).worsening == 0


@pytest.mark.parametrize(
    ("after", "low", "high", "is_clear", "is_worse"),
    [
        (0.06, 0.001, 0.1, True, True),
        (0.06, 0.0, 0.1, False, False),
        (0.05, 0.001, 0.1, True, False),  # a quarter of 0.2, which is tolerated
        (0.0, -0.1, 0.0, False, False),
    ],
)
def test_bounds_themselves_are_no_change(after, low, high, is_clear, is_worse):
    change = FigureChange("dark", 0.0, after, low, high, 40)
    assert (change.is_clear, change.is_worse) == (is_clear, is_worse)


def test_means_are_over_the_images_that_have_the_figure():
    images = [
        JudgedImage(0, 0, "", "", 1.0, True, "", None, {"grain": 0.2, "part_ocr": 1.0}),
        JudgedImage(1, 0, "", "", 1.0, True, "", None, {"grain": 0.4, "diversity_within": 1.0}),
    ]
    assert mean_figures(image.figures for image in images) == {
        "grain": pytest.approx(0.3),
        "diversity_within": 1.0,
    }
