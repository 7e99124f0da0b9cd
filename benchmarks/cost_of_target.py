"""Dollars to Flow-GRPO's final score: with Spotlight, and with Flow-GRPO on three fleets.

    python -m benchmarks.cost_of_target [--keep]

Reads the kept learning curves of `benchmarks.exploration`. Iterations to the target are measured, seconds are
modelled as there (`ModelledFleet.critical_path_s`), dollars are these seconds times the public prices of an
H100 that the project carries. Flow-GRPO is given the same twelve devices all on demand, where it may train on
all of them; the four reserved ones alone; and the mixed fleet, on which Spotlight runs. What preemptions cost
is not in it. Only ratios mean something: the seconds are those of small models on a CPU's core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.curve_store import CurveStore
from benchmarks.exploration import FULL_EVERY, FULL_SEEDS, PRESETS, arm_config, kept_curves, wanted_curves
from benchmarks.exploration_summary import FLEET, measure_of, reached_at, slowness_of, target_of
from benchmarks.learning_curve import Curve, ModelledFleet
from benchmarks.report import RESULTS, add_keep_option, finish
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.spot.prices.known_prices import known_prices

DEVICE = "H100"
FLEETS = {
    "on_demand": ModelledFleet(FLEET.reserved + FLEET.spot, 0, FLEET.scorers),
    "reserved_alone": ModelledFleet(FLEET.reserved, 0, FLEET.scorers),
    "mixed": FLEET,
}
ARMS = {"plain": tuple(FLEETS), "plain_nft": tuple(FLEETS), "stale_grpo": ("mixed",), "stale": ("mixed",)}
"""The fleets that each arm is placed on; stale drafts need devices that do not train."""

Curves = Mapping[tuple[str, int], Curve]
"""By arm and run seed."""


def usd_per_hour(fleet: ModelledFleet, zone: str) -> float:
    """What a fleet costs at the prices of a zone; reserved devices at the price on demand."""
    prices = known_prices()
    reserved = prices.usd_per_hour(DEVICE, "on_demand", zone)
    spot = prices.usd_per_hour(DEVICE, "spot", zone)
    return fleet.reserved * reserved + fleet.spot * spot


def seconds_to_target(curves: Curves, arm: str, task: str, fleet: ModelledFleet) -> float | None:
    """Modelled seconds, by medians over run seeds; None where the median run does not reach it."""
    config = arm_config(task, arm, 0)
    signal, timing = config.reward.signal, strategy_of(config).timing
    target = target_of([curve for (name, _), curve in curves.items() if name == "plain"], signal)
    slowness = dict(zip(curves, slowness_of([*curves.values()]), strict=True))
    members = {name: curve for name, curve in curves.items() if name[0] == arm}
    reached = [reached_at(c.iterations, measure_of(c, signal), target) for c in members.values()]
    iterations = statistics.median(float("inf") if r is None else r for r in reached)
    iteration_s = statistics.median(
        fleet.critical_path_s(curve, timing) / slowness[name] for name, curve in members.items()
    )
    return None if iterations == float("inf") else iterations * iteration_s


def of_task(task: str) -> dict[str, Any]:
    """Modelled seconds, and what each arm and fleet pays for one dollar of Spotlight's, by zone.

    Args:
        task: of `benchmarks.exploration`.
    """
    kept = json.loads((RESULTS / f"exploration-{task}.json").read_text(encoding="utf-8"))["figures"]
    store = CurveStore(f"exploration-{task}", kept["curves_commit"], kept["curves_after"])
    curves = kept_curves(store, wanted_curves(task, ARMS, FULL_SEEDS, 1, FULL_EVERY))
    seconds = {
        f"{arm}/{fleet}": seconds_to_target(curves, arm, task, FLEETS[fleet])
        for arm, fleets in ARMS.items()
        for fleet in fleets
    }
    offers = known_prices().prices
    zones = [price.zone for price in offers if (price.device, price.market) == (DEVICE, "spot")]
    ours = seconds["stale/mixed"]
    if ours is None:
        raise SystemExit(f"{task}: the kept curves of `stale` do not reach the target")
    return {
        "curves_commit": store.commit,
        "modelled_s": {name: found and round(found, 2) for name, found in seconds.items()},
        "for_a_dollar_of_stale": {
            name: {
                zone: round(_usd(name, found, zone) / _usd("stale/mixed", ours, zone), 2) for zone in zones
            }
            for name, found in seconds.items()
            if found is not None
        },
    }


def _usd(name: str, seconds: float, zone: str) -> float:
    return seconds / 3600 * usd_per_hour(FLEETS[name.partition("/")[2]], zone)


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_keep_option(parser)
    arguments = parser.parse_args()
    tasks = {task: of_task(task) for task in sorted(PRESETS)}
    ratios = [
        ratio
        for figures in tasks.values()
        for name, by_zone in figures["for_a_dollar_of_stale"].items()
        if name.startswith("plain/")
        for ratio in by_zone.values()
    ]
    figures = {"cost_ratio_low": min(ratios), "cost_ratio_high": max(ratios), "device": DEVICE, **tasks}
    finish("cost_of_target", figures, arguments.keep)


if __name__ == "__main__":
    main()
