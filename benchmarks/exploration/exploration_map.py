"""Compare exploration's predicted gain per trained sample with the measured one.

    python -m benchmarks.exploration_map [--after COMMIT] [--as-is] [--keep]

A point is an exploring arm beside the arm without exploration of the same task, recipe and run seeds, which
learn with DiffusionNFT. Its gain is the samples that the latter trains on until it has `SHARE` of its own
gain, over those that the exploring arm trains on until it is as good (`benchmarks/exploration/summary.py`;
medians over run seeds, with a bootstrap's interval of 5 to 95 %). Flow-GRPO is left out: half of its run
seeds never get there.

The prediction is that of `exploration.strategy=auto` (`gpu_runtime/exploration/signal_rate.py`): an iteration
brings its signal, d * sqrt(n) for a mean deviation d within groups and n trained samples. It was made from
what is known before a run: the scores of a pilot with the untouched model, G of N, the numbers of prompts
explored and trained on, the number of drafts, and whether chosen drafts are rolled out again, by which
`MeasuredIterations.holds` is assumed to be left of their gain in variance. One constant is fitted: measured
runs reward larger batches more than the root does, so a signal counts as d * n ** exponent.

Commit 18127996 predicted all points (`gain_predictions.json`) and has the code for it. It came before any
pair of the points named there as predicted was measured; the exponent is the least-squares one of the others.
(Of graded shapes two runs of `off_policy_32` were there already, with none of `plain_nft_shared` of the same
recipe to compare them with.)

Figures: `error_median` is the median of |predicted - measured| / measured over all points,
`error_median_before` over those predicted first (`_at_half`: to half of the gain), `error_median_of_auto`
with auto's root; an arm half of whose run seeds never get there is infinitely wrong. `order_right` is the
share of pairs of points that the prediction puts in the measured order, of those whose measured difference
exceeds its noise: as logarithms, the root of the summed squares of both half intervals.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.exploration.arms import TASKS, arm_config
from benchmarks.exploration.curve_store import KEPT, CurveStore, add_curve_options
from benchmarks.exploration.exploration_auto import CASES, FIXED, RECIPE, curves_wanted
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.summary import arm_curves, ratio
from benchmarks.report import finish, options

SHARE = 75
"""Percent of the gain of the arm without exploration that both arms are to reach."""

HALF = 50
"""A second target, which says whether a prediction fails early or late; no aim is of it."""

PREDICTIONS = Path(__file__).with_name("gain_predictions.json")

EARLIER_PLAIN = ("plain_nft", ("fd582533e469",))
EARLIER_COMMITS = ("16f9e9c93b04", "28d210e02fd3", "a4cd5e6960a2", "eb36fb62d238")
"""Curves of exact rewards of earlier arms, with a recipe of their own, and the commits that made them."""


@dataclass(frozen=True)
class Point:
    """A setting of exploration on a task.

    Attributes:
        task: name of the task.
        strategy: `stale` or `off_policy`.
        prompts: prompt groups that are trained on, of `explored` ones.
        explored: prompt groups that drafts are made for.
        drafts: drafts of an iteration.
    """

    task: str
    strategy: str
    prompts: int = 16
    explored: int = 32
    drafts: int = 224

    @property
    def name(self) -> str:
        """Name in the result."""
        return f"{self.task}, {self.strategy}, {self.prompts} of {self.explored}"


STRATEGIES = ("off_policy", "stale")
EARLIER = tuple(Point(task, each, 32, 48, 448) for task in ("ocr", "shapes") for each in STRATEGIES)
MEASURED = (*EARLIER, *(Point("ocr-graded", each) for each in STRATEGIES))
"""Points that were measured when the exponent was fitted to them."""

PREDICTED = tuple(Point(task, each) for task in ("ocr", "shapes-graded", "shapes") for each in STRATEGIES)
"""Points that were predicted before they were measured."""


def measured_gain(point: Point, plain: Mapping[int, Curve], ours: Mapping[int, Curve]) -> dict[str, Any]:
    """Return the gain of a point per trained sample, with its interval."""
    curves = {("plain", seed): curve for seed, curve in plain.items() if seed in ours}
    curves |= {("ours", seed): curve for seed, curve in ours.items() if seed in plain}
    names = {"plain": FIXED["plain"], "ours": FIXED[point.strategy]}
    arms = arm_curves(curves, {each: arm_config(point.task, name, 0, RECIPE) for each, name in names.items()})
    slow, fast = arms["plain"], arms["ours"]
    whole, early = (
        ratio(slow, fast, (slow.trained, fast.trained), slow.targets()[share]) for share in (SHARE, HALF)
    )
    return {**whole, "median_at_half": early["median"]}


def order_right(predicted: Sequence[float], gains: Sequence[Mapping[str, float]]) -> tuple[int, int]:
    """Return how many pairs of points are predicted in order, and how many differ by more than noise."""
    right = pairs = 0
    for one, other in itertools.combinations(range(len(gains)), 2):
        difference = _log(gains[one]["median"]) - _log(gains[other]["median"])
        noise = math.hypot(_half_interval(gains[one]), _half_interval(gains[other]))
        if abs(difference) > noise:
            pairs += 1
            right += difference * (predicted[one] - predicted[other]) > 0
    return right, pairs


def _half_interval(gain: Mapping[str, float]) -> float:
    return (_log(gain["high"]) - _log(gain["low"])) / 2


def _log(gain: float) -> float:
    return math.log(gain) if gain else -math.inf


def summarise(points: Mapping[Point, Mapping[str, Any]], predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of all points that are measured."""
    found = {point: gain for point, gain in points.items() if gain["median"] is not None}
    predicted = {point: predictions["points"][point.name] for point in found}
    errors, of_auto = (
        {point: _error(predicted[point][name], gain["median"]) for point, gain in found.items()}
        for name in ("gain", "gain_of_auto")
    )
    right, pairs = order_right([one["gain"] for one in predicted.values()], [*found.values()])
    ahead = [point for point in found if point in PREDICTED]
    return {
        "points": len(found),
        "predicted_before": len(ahead),
        "error_median": _median(errors.values()),
        "error_median_before": _median(errors[point] for point in ahead),
        "error_median_before_at_half": _median(
            _error(predicted[point]["gain"], found[point]["median_at_half"]) for point in ahead
        ),
        "error_median_of_auto": _median(of_auto.values()),
        "order_right": round(right / pairs, 3) if pairs else None,
        "pairs_beyond_noise": pairs,
        "exponent": predictions["exponent"],
        "map": [
            {
                **asdict(point), "signal": TASKS[point.task].signal, "predicted_before": point in PREDICTED,
                "predicted": predicted[point]["gain"], "measured": gain,
                "error": round(errors[point], 3) if gain["median"] else None,
            }
            for point, gain in found.items()
        ],
    }  # fmt: skip


def _error(predicted: float, measured: float) -> float:
    """Return the relative error; infinite where half of the exploring run seeds never get there."""
    return abs(predicted / measured - 1) if measured else math.inf


def _median(values: Iterable[float]) -> float | None:
    """Return the median; None without values, and where it is infinite."""
    some = list(values)
    middle = statistics.median(some) if some else math.inf
    return round(middle, 3) if math.isfinite(middle) else None


def earlier_curves(task: str, arm: str, commits: Sequence[str]) -> dict[int, Curve]:
    """Return the kept curves of an earlier arm by run seed."""
    found = {}
    for commit in commits:
        for path in (KEPT / f"exploration-{task}" / commit).glob(f"{arm}-*.json"):
            name, run_seed, _ = path.stem.rsplit("-", 2)
            if name == arm:
                found[int(run_seed)] = Curve(**json.loads(path.read_text(encoding="utf-8")))
    return found


def earlier_points() -> dict[Point, dict[str, Any]]:
    """Return the measured gains of earlier arms."""
    return {
        point: measured_gain(
            point,
            earlier_curves(point.task, *EARLIER_PLAIN),
            earlier_curves(point.task, point.strategy, EARLIER_COMMITS),
        )
        for point in EARLIER
    }


def present_points(arguments: argparse.Namespace) -> dict[Point, dict[str, Any]]:
    """Return the measured gains of today's arms, whose curves are those of `benchmarks.exploration_auto`."""
    case_of = {case.task: name for name, case in reversed(CASES.items())}
    wanted = curves_wanted([*case_of.values()], arguments.seeds)
    found = {}
    for task, case in case_of.items():
        mine = {key[1:]: want for key, want in wanted.items() if key[0] == case and key[1] != "auto"}
        made = CurveStore.of_call(f"exploration-{task}", arguments).curves(mine)
        arms = {name: {seed: curve for (each, seed), curve in made.items() if each == name} for name in FIXED}
        for point in (*MEASURED, *PREDICTED):
            both = arms["plain"].keys() & arms[point.strategy].keys()
            if point.task == task and point not in EARLIER and len(both) > 1:
                found[point] = measured_gain(point, arms["plain"], arms[point.strategy])
    return found


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    add_curve_options(parser, 4)
    arguments = parser.parse_args()
    points = earlier_points() | present_points(arguments)
    predictions = json.loads(PREDICTIONS.read_text(encoding="utf-8"))
    figures = {"curves_after": arguments.after, **summarise(points, predictions)}
    finish("exploration_map", figures, arguments)


if __name__ == "__main__":
    main()
