"""How the benchmark of objectives reads its curves: values worked out by hand."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.exploration import objectives
from benchmarks.exploration.__main__ import reported_curves
from benchmarks.exploration.curves import curve_store
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.objectives import OBJECTIVES, compare, table

EVERY = 10


def made(score: list[float], trained: int, distance: list[float] | None = None) -> Curve:
    """A curve that is evaluated every ten iterations and trains on so many samples in each."""
    length = EVERY * (len(score) - 1)
    return Curve(
        iterations=list(range(0, length + 1, EVERY)),
        score=score,
        exact=[value / 2 for value in score],
        distance=distance or [0.4] * len(score),
        grain=[0.1] * len(score),
        rollouts=[100] * length,
        drafts=[0] * length,
        seconds={"rollout": 1.0, "explore": 0.0, "score": 1.0, "train": 1.0},
        samples={"rollout": 100 * length, "explore": 0, "score": 100 * length, "train": trained * length},
        driver_s=[0.1] * length,
    )


NFT = made([0.2, 0.4, 0.6, 0.8], trained=50)
GRPO = made([0.2, 0.3, 0.4], trained=100, distance=[0.4, 0.6, 0.8])
GUARD = made([0.2, 0.4, 0.5], trained=100, distance=[0.4, 0.5, 0.5])


def curves_of(seeds: int = 3) -> dict[tuple[str, int], Curve]:
    by_objective = {"nft": NFT, "grpo": GRPO, "grpo-guard": GUARD, "awm": NFT, "dpo": GRPO}
    return {
        (arm, run_seed): by_objective[objective]
        for objective, arm in OBJECTIVES.items()
        for run_seed in range(seeds)
    }


def test_gains_are_compared_at_equal_trained_samples():
    figures = compare(curves_of())
    # The first to end is DiffusionNFT, after 30 iterations of 50; the others have had 15 of 100 by then.
    assert figures["trained_samples"] == 1500
    gains = {name: found["gain"] for name, found in figures["objectives"].items()}
    assert gains == pytest.approx({"nft": 0.6, "grpo": 0.15, "grpo-guard": 0.25, "awm": 0.6, "dpo": 0.15})
    shares = {name: found["gain_share_of_nft"]["median"] for name, found in figures["objectives"].items()}
    assert shares == pytest.approx(
        {"nft": 1, "grpo": 0.25, "grpo-guard": 0.25 / 0.6, "awm": 1, "dpo": 0.25}, abs=1e-3
    )
    assert figures["objectives"]["grpo-guard"]["exact_gain"] == pytest.approx(0.125)


def test_a_share_is_of_medians_over_common_run_seeds_with_a_bootstrap():
    curves = curves_of(4)
    guard = OBJECTIVES["grpo-guard"]
    del curves[guard, 3]
    curves[guard, 0] = made([0.2, 0.2, 0.2], trained=100)
    curves[guard, 1] = made([0.2, 0.5, 0.5], trained=100)
    found = compare(curves)["objectives"]["grpo-guard"]
    assert found["run_seeds"] == 3
    # Gains of 0, .3 and .25 over .6; the least has a median of draws with 7 of 27.
    share = found["gain_share_of_nft"]
    assert (share["low"], share["median"], share["high"]) == pytest.approx((0, 0.417, 0.5), abs=1e-3)


def test_images_are_compared_at_the_scores_that_both_reach():
    figures = compare(curves_of())
    # Both gain .2: Flow-GRPO gains its quarters after 5, 10, 15 and 20 iterations, GRPO-Guard after 2.5, 5,
    # 7.5 and 10.
    flow, guard = (0.5 + 0.6 + 0.7 + 0.8) / 4, (0.425 + 0.45 + 0.475 + 0.5) / 4
    ratio = figures["guard_distance_ratio"]
    assert ratio["all"] == pytest.approx([guard / flow] * 3, abs=1e-4)
    assert (ratio["median"], ratio["no_worse"]) == (ratio["all"][0], 3)
    assert figures["guard_grain_ratio"]["all"] == [1.0] * 3
    assert figures["objectives"]["dpo"]["distance_ratio"]["all"] == [1.0] * 3
    curves = curves_of()
    curves["plain_grpo", 0] = made([0.2, 0.1, 0.1], trained=100)
    found = compare(curves)["guard_distance_ratio"]
    assert len(found["all"]) == 2, "where nothing is gained, no score is equal"


def test_the_benchmark_reads_the_store_and_ends_with_one_json_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr("benchmarks.report.environment", lambda: {"commit": "abc"})
    monkeypatch.setattr(sys, "argv", ["objectives", "--as-is"])
    with pytest.raises(SystemExit):
        objectives.main()
    assert "there is no curve of plain_awm, " in capsys.readouterr().err
    store, curves = curve_store("exploration-ocr-graded", "abc"), curves_of()
    for key, want in reported_curves("ocr-graded", OBJECTIVES.values(), 3).items():
        store.save(want.name, curves[key])
    objectives.main()
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])
    assert figures == json.loads(json.dumps(compare(curves)))
    assert printed.startswith(table(figures))
