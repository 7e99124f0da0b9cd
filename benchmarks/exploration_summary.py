"""What learning curves say: when each arm reaches the target, and what each part of the system brings."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import scipy.stats

from benchmarks.learning_curve import Curve, ModelledFleet
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.simulator.comparison.learning_curves import end_of, reached_at, smooth_of
from storage.config.run_config import RunConfig

FLEET = ModelledFleet()

PARTS = (
    ("objective", "plain", "plain_nft"),
    ("exploration_on_nft", "plain_nft", "stale"),
    ("exploration_on_grpo", "plain", "stale_grpo"),
    ("bandit", "stale_uniform", "stale"),
    ("freshness", "stale", "fresh"),
    ("over_larger_batch", "larger_batch", "stale"),
)
"""What is compared, the slower arm (one hopes) first."""


def measure_of(curve: Curve, signal: str) -> list[float]:
    """The evaluations that the target is of: what the run learns from."""
    return curve.score if signal == "graded" else curve.exact


def target_of(plain: Sequence[Curve], signal: str) -> float:
    """What `plain` reaches at its end, the median of its run seeds."""
    return statistics.median(end_of(measure_of(curve, signal)) for curve in plain)


def slowness_of(curves: Sequence[Curve]) -> list[float]:
    """How much slower than usual the core of each curve was; the median over all curves is 1.

    Other work on a machine slows even the CPU seconds of a core (shared caches, shared pipelines, stolen
    time). All curves draw rollouts with the same model and sampler, so their seconds an image tell how much.
    """
    image_s = [statistics.median(c.rollout_s) / statistics.median(c.rollouts) for c in curves]
    usual_s = statistics.median(image_s)
    return [each / usual_s for each in image_s]


def summarise(
    task: str, curves: dict[tuple[str, int], Curve], configs: Mapping[str, RunConfig]
) -> dict[str, Any]:
    """The figures of all arms.

    Args:
        task: its name.
        curves: by arm and run seed; some of `plain` at least.
        configs: what each arm was run with, apart from the run seed.
    """
    signal = configs["plain"].reward.signal
    by_arm: dict[str, list[Curve]] = {}
    for (arm, _), curve in sorted(curves.items()):
        by_arm.setdefault(arm, []).append(curve)
    target = target_of(by_arm["plain"], signal)
    slowness = {
        id(curve): slow for curve, slow in zip(curves.values(), slowness_of([*curves.values()]), strict=True)
    }
    arms = {}
    for arm, members in by_arm.items():
        reached = [reached_at(c.iterations, measure_of(c, signal), target) for c in members]
        # One that never reaches it counts as slower than any that does.
        median = statistics.median(float("inf") if r is None else r for r in reached)
        timing = strategy_of(configs[arm]).timing
        iteration_s = statistics.median(FLEET.critical_path_s(c, timing) / slowness[id(c)] for c in members)
        arms[arm] = {
            "run_seeds": len(members),
            "iterations_to_target": {
                "median": None if median == float("inf") else round(median, 2),
                "all": [None if r is None else round(r, 2) for r in reached],
            },
            "seen_until": min(smooth_of(c.iterations)[-1] for c in members),
            "final_score": [round(end_of(measure_of(c, signal)), 4) for c in members],
            "final_exact": [round(end_of(c.exact), 4) for c in members],
            "iterations": [c.iterations[-1] for c in members],
            "modelled_iteration_s": round(iteration_s, 4),
            "modelled_time_to_target": None if median == float("inf") else round(median * iteration_s, 2),
            "spearman_median": _median([value for c in members for value in c.spearman]),
            "captured_variance": _mean([value for c in members for value in c.captured]),
            "variance_rollout": _mean([value for c in members for value in c.variance_rollout]),
            "curves": [
                {"iterations": c.iterations, "score": _rounded(c.score), "exact": _rounded(c.exact)}
                for c in members
            ],
        }
    return {
        "task": task,
        "signal": signal,
        "base_exact": round(by_arm["plain"][0].exact[0], 4),
        "target": round(target, 4),
        "plain_iterations": by_arm["plain"][0].iterations[-1],
        "run_seeds": len(by_arm["plain"]),
        "speedup": _ratio(arms, "iterations_to_target", "plain", "stale"),
        "modelled_speedup": _ratio(arms, "modelled_time_to_target", "plain", "stale"),
        "speedup_by": {
            part: {
                "iterations": _ratio(arms, "iterations_to_target", slow, fast),
                "modelled": _ratio(arms, "modelled_time_to_target", slow, fast),
            }
            for part, slow, fast in PARTS
        },
        "allocation": bandit_gain(curves),
        "fleet": {
            "reserved": FLEET.reserved,
            "spot": FLEET.spot,
            "rule": inspect.cleandoc(FLEET.critical_path_s.__doc__ or ""),
            "speed": inspect.cleandoc(slowness_of.__doc__ or ""),
        },
        "arms": arms,
    }


def bandit_gain(curves: dict[tuple[str, int], Curve]) -> dict[str, dict[str, Any]]:
    """What the bandit finds beyond an even division, as a share of the oracle's spread, by budget.

    Both on the same tables of scores. The tables of a run seed have their prompts and noise in common, so a
    run seed counts as one observation: the mean over its tables. The interval is Student's, 95 %.
    """
    pairs: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for (_, run_seed), curve in sorted(curves.items()):
        for table in curve.found:
            for budget, (bandit, uniform) in table.items():
                pairs.setdefault(budget, {}).setdefault(run_seed, []).append((bandit, uniform))
    return {budget: _gain_of(list(by_seed.values())) for budget, by_seed in sorted(pairs.items())}


def _gain_of(seeds: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """The gain at one budget, from each run seed's pairs of (bandit, uniform)."""
    means = [[statistics.fmean(column) for column in zip(*pairs, strict=True)] for pairs in seeds]
    gains = [bandit - uniform for bandit, uniform in means]
    figures: dict[str, Any] = {
        "bandit": _mean([bandit for bandit, _ in means]),
        "uniform": _mean([uniform for _, uniform in means]),
        "gain": _mean(gains),
        "gains": _rounded(gains),
        "run_seeds": len(gains),
        "tables": sum(len(pairs) for pairs in seeds),
    }
    if len(gains) > 1:
        half = half_interval(gains)
        figures["low"] = round(figures["gain"] - half, 4)
        figures["high"] = round(figures["gain"] + half, 4)
    return figures


def half_interval(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of a mean; of two values at least."""
    deviation = statistics.stdev(values) / len(values) ** 0.5
    return float(scipy.stats.t.ppf(0.975, len(values) - 1)) * deviation


def _ratio(arms: dict[str, Any], key: str, slow: str, fast: str) -> float | None:
    """One arm's value over another's; None where an arm was not run or never reached the target."""
    values = [arms[arm][key] if arm in arms else None for arm in (slow, fast)]
    one, other = (value["median"] if isinstance(value, dict) else value for value in values)
    return round(one / other, 2) if one and other else None


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None


def _mean(values: list[float]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]
