"""The objectives beside each other, without exploration: what they gain, and what their images become.

    python -m benchmarks.objectives [--seeds 3] [--after COMMIT] [--as-is] [--keep]

The curves are the exploration benchmark's (`benchmarks/exploration/learning_curve.py`) and lie in its store.
All objectives learn the same task from the same model and are evaluated alike.

Gains are compared once each objective has trained on as many samples as the first one to end, and given as a
share of DiffusionNFT's: a ratio of medians over the run seeds that both have, with a bootstrap interval.

Images are compared with Flow-GRPO's at equal scores: at 25, 50, 75 and 100 % of the gain that both reach in a
run seed, where the fits of `reached_at` reach it. A ratio is of the means over these four, of `grain` and of
`truth_distance`, which are not rewarded; below 1 the objective's images are nearer to the renderer's.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.exploration.__main__ import reported_curves
from benchmarks.exploration.arms import arm_config
from benchmarks.exploration.curve_store import add_curve_options, commits_since
from benchmarks.exploration.curves import curve_store, make_curves
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.summary import ArmCurves, arm_curves, ratio_of_medians
from benchmarks.exploration.tuning import tuned_of
from benchmarks.report import finish, options
from gpu_runtime.simulator.comparison.learning_curves import MILESTONES, reached_at, rising_fit

TASK = "ocr-graded"

OBJECTIVES = {
    "nft": "plain_nft_shared",
    "grpo": "plain_grpo",
    "grpo-guard": "plain_grpo_guard",
    "awm": "plain_awm",
    "dpo": "plain_dpo",
}
"""Arms of `benchmarks/exploration/arms.py`, by the objective's name."""

IMAGES = ("distance", "grain")
"""Figures of a curve that are compared at equal scores."""


def gains_after(arm: ArmCurves, amount: float) -> dict[int, float]:
    """Each run seed's gain once it has trained on an amount of samples, interpolated."""
    return dict(zip(arm.curves, arm.gains_at(amount / arm.trained), strict=True))


def share_of(arm: ArmCurves, base: ArmCurves, amount: float) -> dict[str, Any]:
    """An arm's gain from an amount of samples, over that of another arm: median and interval."""
    mine, theirs = gains_after(arm, amount), gains_after(base, amount)
    both = [run_seed for run_seed in mine if run_seed in theirs]
    return ratio_of_medians([mine[one] for one in both], [theirs[one] for one in both])


def images_ratio(arm: ArmCurves, base: ArmCurves, figure: str) -> dict[str, Any]:
    """A figure of an arm's images over that of another arm's at equal scores, by run seed."""
    ratios = [
        ratio
        for run_seed in arm.curves
        if run_seed in base.curves and (ratio := _images_ratio(arm, base, figure, run_seed))
    ]
    return {
        "median": round(statistics.median(ratios), 4) if ratios else None,
        "all": [round(ratio, 4) for ratio in ratios],
        "no_worse": sum(ratio <= 1 for ratio in ratios),
    }


def _images_ratio(arm: ArmCurves, base: ArmCurves, figure: str, run_seed: int) -> float | None:
    """None where one of both arms gains nothing."""
    curves = [(each.curves[run_seed], each.gains(run_seed)) for each in (arm, base)]
    gain = min(rising_fit(curve.iterations, gains)[1][-1] for curve, gains in curves)
    if gain <= 0:
        return None
    mine, theirs = (
        statistics.fmean(_figure_at(curve, gains, share * gain, figure) for share in MILESTONES)
        for curve, gains in curves
    )
    return mine / theirs


def _figure_at(curve: Curve, gains: Sequence[float], gain: float, figure: str) -> float:
    at = reached_at(curve.iterations, gains, gain)
    assert at is not None, "the fit ends above this gain"
    return float(np.interp(at, curve.iterations, getattr(curve, figure)))


def compare(curves: Mapping[tuple[str, int], Curve]) -> dict[str, Any]:
    """The figures of all objectives."""
    arms = arm_curves(curves, {arm: arm_config(TASK, arm, 0) for arm in OBJECTIVES.values()})
    graded = {objective: arms[arm] for objective, arm in OBJECTIVES.items()}
    exact = {objective: replace(arm, measure="exact") for objective, arm in graded.items()}
    amount = min(min(c.iterations[-1] for c in arm.curves.values()) * arm.trained for arm in graded.values())
    figures = {
        objective: {
            "arm": arm.name,
            "run_seeds": len(arm.curves),
            "gain": _median_gain(arm, amount),
            "exact_gain": _median_gain(exact[objective], amount),
            "gain_share_of_nft": share_of(arm, graded["nft"], amount),
            "exact_share_of_nft": share_of(exact[objective], exact["nft"], amount),
            **{f"{figure}_ratio": images_ratio(arm, graded["grpo"], figure) for figure in IMAGES},
        }
        for objective, arm in graded.items()
    }
    return {
        "task": TASK,
        "run_seeds": min(len(arm.curves) for arm in graded.values()),
        "trained_samples": round(amount),
        **{f"guard_{figure}_ratio": figures["grpo-guard"][f"{figure}_ratio"] for figure in IMAGES},
        "objectives": figures,
    }


def _median_gain(arm: ArmCurves, amount: float) -> float:
    return round(statistics.median(gains_after(arm, amount).values()), 4)


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    add_curve_options(parser, 3)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    earlier = commits_since(arguments.after)
    store = curve_store(f"exploration-{TASK}", arguments.commit, earlier)
    tuned = tuned_of(TASK, arguments.commit, earlier)
    wanted = reported_curves(TASK, OBJECTIVES.values(), arguments.seeds, tuned)
    curves = make_curves(store, wanted, 0 if arguments.as_is else arguments.jobs)
    if missing := set(OBJECTIVES.values()) - {arm for arm, _ in curves}:
        parser.error(f"there is no curve of {', '.join(sorted(missing))}; leave out --as-is to make them")
    if arguments.keep:
        store.keep()
    finish("objectives", compare(curves), arguments)


if __name__ == "__main__":
    main()
