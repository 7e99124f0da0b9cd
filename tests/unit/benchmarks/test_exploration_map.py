"""The map of exploration's gain: measured gains and the order of points, by hand."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.exploration.exploration_map import (
    EARLIER,
    MEASURED,
    PREDICTED,
    PREDICTIONS,
    Point,
    earlier_points,
    measured_gain,
    order_right,
    summarise,
)
from benchmarks.exploration.learning_curve import Curve


def gain(low: float, median: float, high: float) -> dict[str, float]:
    return {"low": low, "median": median, "high": high, "median_at_half": 0.8}


def test_only_differences_beyond_their_noise_are_judged():
    """1 and 2 differ by a factor of 2, beyond the noise of 1.1 each; 2 and 2.1 do not, and an interval from 0
    is beyond nothing."""
    measured = [gain(1 / 1.1, 1.0, 1.1), gain(2 / 1.1, 2.0, 2.2), gain(2.1 / 1.1, 2.1, 2.31)]
    assert order_right([1.0, 1.5, 1.2], measured) == (2, 2)
    assert order_right([1.4, 1.5, 1.2], measured) == (1, 2)
    assert order_right([1.5, 1.5, 1.6], measured) == (1, 2), "equal predictions are no order"
    assert order_right([1.0, 9.0], [measured[0], gain(0.0, 5.0, 9.0)]) == (0, 0)
    wide = math.exp(math.log(2) / math.sqrt(2))
    assert order_right([1, 2], [gain(1 / wide, 1, wide), gain(2 / wide, 2, 2 * wide)]) == (0, 0)


def curve(rise: float, trained: int) -> Curve:
    """A curve that rises by so much in each of ten iterations, and trains on so many samples in each."""
    steps = range(11)
    values = [0.1 + rise * min(step, 8) for step in steps]
    made = Curve(iterations=[*steps], score=values, exact=values, rollouts=[128] * 10, drafts=[0] * 10)
    made.driver_s = [1.0] * 10
    made.samples = {"rollout": 1280, "explore": 0, "score": 1280, "train": 10 * trained}
    made.seconds = dict.fromkeys(made.samples, 1.0)
    return made


def test_a_measured_gain():
    """Plain ends .08 above its start and is at .06 after 6 iterations of 100 samples; ours after 3 of 50."""
    plain = {seed: curve(0.01, 100) for seed in range(3)}
    found = measured_gain(Point("ocr", "stale"), plain, {seed: curve(0.02, 50) for seed in range(1, 4)})
    assert found["run_seeds"] == 2
    assert (found["median"], found["median_at_half"]) == (pytest.approx(4.0), pytest.approx(4.0))


def test_points_are_those_predicted():
    predictions = json.loads(PREDICTIONS.read_text(encoding="utf-8"))
    before = {point.name: point in PREDICTED for point in (*MEASURED, *PREDICTED)}
    assert {name: one["predicted_before"] for name, one in predictions["points"].items()} == before
    assert len(PREDICTED) >= len(before) / 2 >= 6
    fitted = {one.name: predictions["made_from"]["fitted_on"][one.name]["median"] for one in EARLIER}
    found = earlier_points()
    assert {point.name: one["median"] for point, one in found.items()} == fitted, (
        "kept curves give them again"
    )
    figures = summarise(found, predictions)
    assert (figures["points"], figures["predicted_before"]) == (4, 0)
    errors = [abs(predictions["points"][p.name]["gain"] / one["median"] - 1) for p, one in found.items()]
    assert figures["error_median"] == pytest.approx(sum(sorted(errors)[1:3]) / 2, abs=1e-3)


def test_a_point_that_never_gets_there_counts_as_wrong():
    """Predicted 1.0 and 2.0 each; measured 1.25, .5, and never: errors of .2, 3 and infinity."""
    points, predicted = PREDICTED[:3], (1.0, 2.0, 2.0)
    written = {
        point.name: {"gain": each, "gain_of_auto": 1.0} for point, each in zip(points, predicted, strict=True)
    }
    predictions = {"exponent": 0.7, "points": written}
    measured = [gain(1.2, 1.25, 1.3), gain(0.4, 0.5, 0.6), gain(0.0, 0.0, 1.0)]
    figures = summarise(dict(zip(points, measured, strict=True)), predictions)
    assert (figures["points"], figures["predicted_before"], figures["error_median"]) == (3, 3, 3.0)
    assert figures["error_median_of_auto"] == 1.0
    assert figures["error_median_before_at_half"] == pytest.approx(1.5), "2.0 where .8 is measured, twice"
    one = summarise({points[2]: measured[2]}, predictions)
    assert one["error_median"] is None, "infinity is not JSON"
    assert [point["error"] for point in figures["map"]] == [0.2, 3.0, None]
    assert (figures["order_right"], figures["pairs_beyond_noise"]) == (0.0, 1)
    none = {**gain(0, 0, 0), "median": None}
    assert summarise({points[0]: none}, predictions)["points"] == 0, "plain gains nothing to compare with"
