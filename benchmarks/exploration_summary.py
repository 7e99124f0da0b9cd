"""What learning curves say: what each arm takes to a score, and what exploration brings, with intervals.

A run seed's gain is its running mean of three evaluations less its own first one, as run seeds evaluate other
images. Targets are shares of the best gain without exploration, the median of its run seeds. A ratio is the
time, the iterations or the dollars of one arm over those of another, of medians over the run seeds that both
have, read where both were evaluated; its interval is a bootstrap over these run seeds (5 and 95 %). A run
seed of the slower arm that never reaches a target counts as if it did at its end, which makes the ratio
smaller; one of the faster arm counts as if it never would. The best arm is chosen by the same run seeds that
its ratios are of, which favours it: `time_ratio_75_by_arm` has them all.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from benchmarks.in_process_cluster import TRAIN
from benchmarks.learning_curve import Curve
from benchmarks.modelled_fleet import (
    ALL_TRAIN,
    MIXED,
    ON_DEMAND,
    Costs,
    Fleet,
    costs_of,
    iteration_s,
)
from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.simulator.comparison.learning_curves import MILESTONES, reached_at, smooth_of
from gpu_runtime.spot.prices.known_prices import known_prices
from storage.config.run_config import RunConfig

PLAIN = {"grpo": "plain", "nft": "plain_nft"}
"""The arm of each objective that does not explore."""

DEVICE, ZONE = "H100", "aws/highest"
"""Whose public prices are taken: the zone with the smallest discount of those that the project carries."""

_DRAWS = 4000
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Arm:
    """An arm's curves.

    Attributes:
        name: of the arm.
        curves: by run seed.
        costs: of its samples.
        timing: when it drafts.
        measure: `exact` or `score`: what it learned from.
        updates: training steps of an iteration.
    """

    name: str
    curves: Mapping[int, Curve]
    costs: Costs
    timing: DraftTiming
    measure: str
    updates: int

    @property
    def every(self) -> int:
        """Iterations between evaluations."""
        curve = next(iter(self.curves.values()))
        return curve.iterations[1] - curve.iterations[0]

    def gains(self, run_seed: int) -> list[float]:
        """What each evaluation of a run seed gains over its own untouched model."""
        values: list[float] = getattr(self.curves[run_seed], self.measure)
        return [value - values[0] for value in values]

    def base(self) -> float:
        """What the untouched model scores: the mean over run seeds."""
        return statistics.fmean(getattr(curve, self.measure)[0] for curve in self.curves.values())

    def best_gain(self) -> float:
        """The best running mean of gains, the median over run seeds."""
        return statistics.median(max(smooth_of(self.gains(run_seed))) for run_seed in self.curves)

    def reached(self, target: float, every: int, run_seeds: Sequence[int]) -> list[float | None]:
        """Iterations of some run seeds to a target; None where one never gets there.

        Args:
            target: a gain.
            every: iterations between the evaluations that are read.
            run_seeds: which.
        """
        stride = every // self.every
        return [
            reached_at(self.curves[one].iterations[::stride], self.gains(one)[::stride], target)
            for one in run_seeds
        ]

    def iteration_s(self, fleet: Fleet) -> float:
        """Modelled seconds of an iteration, the median over run seeds."""
        return statistics.median(
            iteration_s(c, self.costs, fleet, self.timing, self.updates) for c in self.curves.values()
        )

    def gains_at(self, iterations: float) -> list[float]:
        """Each run seed's gain over the untouched model after so many iterations, interpolated."""
        return [
            float(np.interp(iterations, smooth_of(curve.iterations), smooth_of(self.gains(run_seed))))
            for run_seed, curve in self.curves.items()
        ]


def arms_of(curves: Mapping[tuple[str, int], Curve], configs: Mapping[str, RunConfig]) -> dict[str, Arm]:
    """The arms of a task.

    Args:
        curves: by arm and run seed.
        configs: what each arm was run with, apart from the run seed.
    """
    by_name: dict[str, dict[int, Curve]] = {}
    for (name, run_seed), curve in sorted(curves.items()):
        by_name.setdefault(name, {})[run_seed] = curve
    like: dict[str, list[Curve]] = {}
    for (name, _), curve in curves.items():
        like.setdefault(configs[name].algorithm.objective, []).append(curve)
    return {
        name: Arm(
            name,
            members,
            costs_of([*members.values()], like[configs[name].algorithm.objective], [*curves.values()]),
            strategy_of(configs[name]).timing,
            "score" if configs[name].reward.signal == "graded" else "exact",
            configs[name].algorithm.updates_per_iteration,
        )
        for name, members in by_name.items()
    }


def summarise(
    task: str,
    curves: Mapping[tuple[str, int], Curve],
    configs: Mapping[str, RunConfig],
    ablations: Collection[str] = (),
) -> dict[str, Any]:
    """The figures of all arms.

    Args:
        task: its name.
        curves: by arm and run seed; some of `plain` at least.
        configs: what each arm was run with, apart from the run seed.
        ablations: arms that may have fewer run seeds than the result.
    """
    arms = arms_of(curves, configs)
    objectives = {name: config.algorithm.objective for name, config in configs.items()}
    explored: dict[str, Any] = {}
    all_train: dict[str, Any] = {}
    for objective, none in PLAIN.items():
        others = [arm for name, arm in arms.items() if objectives[name] == objective and name != none]
        if none in arms and others:
            explored[objective], all_train[objective] = _exploration(arms[none], others)
    targets, every = targets_of(arms["plain"]), max(arm.every for arm in arms.values())
    return {
        "task": task,
        "signal": configs["plain"].reward.signal,
        "run_seeds": min(len(arm.curves) for name, arm in arms.items() if name not in ablations),
        "base": round(arms["plain"].base(), 4),
        "target": round(arms["plain"].base() + targets[100], 4),
        "exploration": explored,
        "all_train": all_train,
        "best_against_all_on_demand": _against_on_demand(arms, objectives),
        "prices": {"device": DEVICE, "zone": ZONE},
        "fleet": {"reserved": MIXED.reserved, "spot": MIXED.spot, "scorers": MIXED.scorers},
        "arms": {name: _arm_figures(arm, targets, every) for name, arm in arms.items()},
    }


def targets_of(plain: Arm) -> dict[int, float]:
    """Gains at shares of the best one of an arm, by the share in percent."""
    return {round(100 * share): share * plain.best_gain() for share in MILESTONES}


@dataclass(frozen=True)
class Way:
    """An arm on a fleet, and what is counted of it.

    Attributes:
        arm: of the curves.
        unit: what one iteration is: 1, seconds or dollars.
    """

    arm: Arm
    unit: float

    def amounts(self, reached: Sequence[float | None], ends: Sequence[float]) -> list[float]:
        """What run seeds take to a target.

        Args:
            reached: iterations that each takes; None where it never gets there.
            ends: what it counts as then.
        """
        return [self.unit * (end if at is None else at) for at, end in zip(reached, ends, strict=True)]


def ratio(slow: Way, fast: Way, target: float) -> dict[str, Any]:
    """The slower way over the faster one, with its interval.

    Args:
        slow: the way to compare with.
        fast: the way that is to take less.
        target: a gain.
    """
    run_seeds = sorted(slow.arm.curves.keys() & fast.arm.curves.keys())
    every = max(slow.arm.every, fast.arm.every)
    slow_at, fast_at = (way.arm.reached(target, every, run_seeds) for way in (slow, fast))
    theirs = slow.amounts(slow_at, [slow.arm.curves[one].iterations[-1] for one in run_seeds])
    ours = fast.amounts(fast_at, [math.inf] * len(run_seeds))
    chance = random.Random(0)

    def draw() -> float:
        places = chance.choices(range(len(run_seeds)), k=len(run_seeds))
        return statistics.median(theirs[one] for one in places) / statistics.median(
            ours[one] for one in places
        )

    drawn = sorted(draw() for _ in range(_DRAWS))
    return {
        "low": round(drawn[int(_LOW * _DRAWS)], 3),
        "median": round(statistics.median(theirs) / statistics.median(ours), 3),
        "high": round(drawn[int(_HIGH * _DRAWS)], 3),
        "run_seeds": len(run_seeds),
        "unreached": {"slow": slow_at.count(None), "fast": fast_at.count(None)},
    }


def _exploration(none: Arm, others: Sequence[Arm]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the best exploring arm of an objective brings on both fleets, and its time against the others.

    Where all devices may train, every arm is on that one of the two fleets on which it takes less time: one
    that drafts may still leave the spot devices to it.
    """
    targets = targets_of(none)
    usd = _usd_per_s(MIXED)

    def ways(arm: Arm, *fleets: Fleet) -> dict[str, Way]:
        seconds = min(arm.iteration_s(fleet) for fleet in fleets or (MIXED,))
        return {"iteration": Way(arm, 1.0), "time": Way(arm, seconds), "dollar": Way(arm, usd * seconds)}

    def best_of(*fleets: Fleet) -> Arm:
        def at_75(arm: Arm) -> float:
            return float(
                ratio(ways(none, *fleets)["time"], ways(arm, *fleets)["time"], targets[75])["median"]
            )

        return max(others, key=at_75)

    best = best_of()
    figures: dict[str, Any] = {"best": best.name, "targets": {at: round(t, 4) for at, t in targets.items()}}
    for share, target in targets.items():
        for name, way in ways(best).items():
            figures[f"{name}_ratio_{share}"] = ratio(ways(none)[name], way, target)
    figures["time_ratio_75_by_arm"] = {
        arm.name: ratio(ways(none)["time"], ways(arm)["time"], targets[75]) for arm in others
    }
    figures["gain_at_equal_time"] = gains_at_equal_time(none, others, MIXED)
    either = MIXED, ALL_TRAIN
    best = best_of(*either)
    all_train = {
        f"{name}_ratio_{share}": ratio(ways(none, *either)[name], way, target)
        for share, target in targets.items()
        for name, way in ways(best, *either).items()
        if name != "iteration"
    }
    return figures, {"best": best.name, **all_train}


def gains_at_equal_time(none: Arm, others: Sequence[Arm], fleet: Fleet) -> dict[str, Any]:
    """Held-out gains of all arms at the time at which the first of them ends; no target is needed.

    By rliable's definitions (Agarwal et al., 2021): the interquartile mean over run seeds, and the
    probability that a run seed of an arm gains more than one without exploration.

    Args:
        none: the arm without exploration.
        others: those that explore.
        fleet: the devices.
    """
    arms = [none, *others]
    seconds = {arm.name: arm.iteration_s(fleet) for arm in arms}
    time_s = min(min(c.iterations[-1] for c in arm.curves.values()) * seconds[arm.name] for arm in arms)
    gains = {arm.name: arm.gains_at(time_s / seconds[arm.name]) for arm in arms}
    return {
        "time_s": round(time_s, 3),
        **{
            name: {
                "interquartile_mean": round(float(scipy.stats.trim_mean(values, 0.25)), 4),
                "all": [round(value, 4) for value in values],
                "probability_of_improvement": round(_improves(values, gains[none.name]), 3),
            }
            for name, values in gains.items()
        },
    }


def _improves(ours: Sequence[float], theirs: Sequence[float]) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in ours for b in theirs]
    return statistics.fmean(pairs)


def _against_on_demand(arms: Mapping[str, Arm], objectives: Mapping[str, str]) -> dict[str, Any]:
    """Every arm on the mixed fleet against Flow-GRPO on as many devices on demand, in dollars.

    An arm trains on all devices where that takes less time. The best one is of those that explore.
    """
    plain = arms["plain"]
    targets = targets_of(plain)
    theirs = Way(plain, plain.iteration_s(ON_DEMAND) * _usd_per_s(ON_DEMAND))
    found = {
        name: {
            f"dollar_ratio_{share}": ratio(
                theirs, Way(arm, min(map(arm.iteration_s, (MIXED, ALL_TRAIN))) * _usd_per_s(MIXED)), target
            )
            for share, target in targets.items()
        }
        for name, arm in arms.items()
    }
    explores = [name for name in found if name not in PLAIN.values()]
    if not explores:
        return {}
    best = max(explores, key=lambda name: found[name]["dollar_ratio_75"]["median"])
    return {"best": best, "objective": objectives[best], **found[best], "by_arm": found}


def _arm_figures(arm: Arm, targets: Mapping[int, float], every: int) -> dict[str, Any]:
    curves = [*arm.curves.values()]
    reached = {share: arm.reached(target, every, [*arm.curves]) for share, target in targets.items()}
    medians = {
        share: statistics.median(math.inf if at is None else at for at in ats)
        for share, ats in reached.items()
    }
    return {
        "run_seeds": [*arm.curves],
        "iterations_to_target": {
            "median": _known(medians[100]),
            "all": [at and round(at, 2) for at in reached[100]],
        },
        "iterations_to_75": {
            "median": _known(medians[75]),
            "all": [at and round(at, 2) for at in reached[75]],
        },
        "final_exact": [round(smooth_of(curve.exact)[-1], 4) for curve in curves],
        "final_score": [round(smooth_of(curve.score)[-1], 4) for curve in curves],
        "iterations": [curve.iterations[-1] for curve in curves],
        "modelled_iteration_s": {
            "mixed": round(arm.iteration_s(MIXED), 4),
            "all_train": round(arm.iteration_s(ALL_TRAIN), 4),
            "on_demand": round(arm.iteration_s(ON_DEMAND), 4),
        },
        "drafts": statistics.median(n for c in curves for n in c.drafts[1:-1]),
        "rollouts": statistics.median(n for c in curves for n in c.rollouts[1:-1]),
        "trained": round(statistics.median(c.samples[TRAIN] / len(c.rollouts) for c in curves), 1),
        "costs_s": {name: round(value, 6) for name, value in vars(arm.costs).items()},
        "spearman_median": _median([value for c in curves for value in c.spearman]),
        "truth_distance_change": [round(c.distance[-1] - c.distance[0], 4) for c in curves],
        "grain_ratio": [round(c.grain[-1] / c.grain[0], 3) for c in curves],
        "notes": sorted({note for c in curves for note in c.notes}),
        "curves": [
            {
                "iterations": c.iterations,
                "score": [round(value, 4) for value in c.score],
                "exact": [round(value, 4) for value in c.exact],
            }
            for c in curves
        ],
    }


def _usd_per_s(fleet: Fleet) -> float:
    prices = known_prices()
    reserved = prices.usd_per_hour(DEVICE, "on_demand", ZONE)
    return fleet.usd_per_s(reserved, prices.usd_per_hour(DEVICE, "spot", ZONE))


def _known(value: float) -> float | None:
    return None if math.isinf(value) else round(value, 2)


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
