"""What learning curves say: what each arm takes to a score, and what exploration brings, with intervals.

A run seed's gain is what an evaluation scores above its own first one, as run seeds evaluate other images. It
reaches a target where the rising curve nearest its evaluations does, interpolated
(`gpu_runtime.simulator.comparison.learning_curves.reached_at`). Targets are shares of the gain with which the
arm without exploration ends, the median of its run seeds. A ratio is the time, the iterations, the dollars or
the samples of one arm over those of another, of medians over the run seeds that both have; its interval is a
bootstrap over these run seeds (5 and 95 %). A run seed of the slower arm that never reaches a target counts
as if it did at its end, which makes the ratio smaller; one of the faster arm counts as if it never would.

The exploring arm of each objective was chosen beforehand, on other prompts
(`benchmarks/exploration/tuning.py`), or else it is the one asked for. It is compared with the arm without
exploration that has the same options and as many prompts an iteration, with the one of another number of
prompts, and with the one that trains on all prompt groups. Arms with the
preset's guards have another reward: of them only exact matches and images are told.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from benchmarks.exploration.arms import ALL_GROUPS, ARMS, BASELINE, plain_arms
from benchmarks.exploration.in_process_cluster import TRAIN
from benchmarks.exploration.learning_curve import Curve, measure_of
from benchmarks.exploration.modelled_fleet import (
    ALL_TRAIN,
    MIXED,
    ON_DEMAND,
    Costs,
    Fleet,
    costs_of,
    iteration_s,
    public_costs,
)
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.simulator.comparison.learning_curves import MILESTONES, end_of, reached_at, rising_fit
from gpu_runtime.spot.prices.price_book import known_prices
from storage.config.run_config import RunConfig

DEVICE, ZONE = "H100", "aws/highest"
"""Whose public prices are taken: the zone with the smallest discount of those that the project carries."""

PUBLIC_SHARES = (0.61, 0.69)
"""Training's share of a step on equal GPUs: the least and the most that public runs of Qwen-Image,
FLUX.2-klein and HunyuanVideo report."""

FLEETS = {"mixed": MIXED, "all_train": ALL_TRAIN, "on_demand": ON_DEMAND}

_DRAWS = 4000
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True)
class ArmCurves:
    """An arm's curves.

    Attributes:
        name: of the arm.
        curves: by run seed.
        costs: of its samples.
        strategy: of exploration.
        measure: `exact` or `score`, that targets are of.
        updates: training steps of an iteration.
    """

    name: str
    curves: Mapping[int, Curve]
    costs: Costs
    strategy: Strategy
    measure: str
    updates: int

    def gains(self, run_seed: int) -> list[float]:
        """What each evaluation of a run seed gains over its own untouched model."""
        return self.curves[run_seed].gains(self.measure)

    def base(self) -> float:
        """What the untouched model scores: the mean over run seeds."""
        return statistics.fmean(getattr(curve, self.measure)[0] for curve in self.curves.values())

    def targets(self) -> dict[int, float]:
        """Gains at shares of the one it ends with, by the share in percent."""
        end = statistics.median(end_of(self.gains(run_seed)) for run_seed in self.curves)
        return {round(100 * share): share * end for share in MILESTONES}

    def reached(self, target: float, run_seeds: Sequence[int]) -> list[float | None]:
        """Iterations of some run seeds to a target gain; None where one never gets there."""
        return [reached_at(self.curves[one].iterations, self.gains(one), target) for one in run_seeds]

    def iteration_s(self, *fleets: Fleet) -> float:
        """Modelled seconds of an iteration on that of some fleets on which it takes least: a median.

        Where spot devices may train, an arm that drafts may still leave them to it.
        """
        return min(
            statistics.median(
                iteration_s(curve, self.costs, fleet, self.strategy, self.updates)
                for curve in self.curves.values()
            )
            for fleet in fleets
        )

    def samples(self, *kinds: str) -> float:
        """Samples of some kinds that an iteration takes: a median."""
        return statistics.median(
            sum(curve.samples[kind] for kind in kinds) / len(curve.rollouts) for curve in self.curves.values()
        )

    @property
    def trained(self) -> float:
        """Samples that an iteration trains on."""
        return self.samples(TRAIN)

    @property
    def generated(self) -> float:
        """Samples that an iteration draws: rollouts and drafts."""
        return self.samples(RequestKind.ROLLOUT.value, RequestKind.EXPLORE.value)


def arm_curves(
    curves: Mapping[tuple[str, int], Curve], configs: Mapping[str, RunConfig]
) -> dict[str, ArmCurves]:
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
        name: ArmCurves(
            name,
            members,
            costs_of([*members.values()], like[configs[name].algorithm.objective], [*curves.values()]),
            strategy_of(configs[name].exploration),
            measure_of(configs[name]),
            configs[name].algorithm.updates_per_iteration,
        )
        for name, members in by_name.items()
    }


def ratio(slow: ArmCurves, fast: ArmCurves, units: tuple[float, float], target: float) -> dict[str, Any]:
    """Return the ratio of what the slower arm spends to what the faster one spends, with its interval.

    Args:
        slow: the arm to compare with.
        fast: the arm that is to take less.
        units: what one iteration of each is: 1, seconds, dollars or samples.
        target: a gain; where it is none, there is no ratio.
    """
    run_seeds = sorted(slow.curves.keys() & fast.curves.keys())
    if not run_seeds or target <= 0:
        return {"low": None, "median": None, "high": None, "run_seeds": len(run_seeds)}
    slow_at, fast_at = (arm.reached(target, run_seeds) for arm in (slow, fast))
    ends = [slow.curves[one].iterations[-1] for one in run_seeds]
    theirs = [units[0] * (end if at is None else at) for at, end in zip(slow_at, ends, strict=True)]
    ours = [units[1] * (math.inf if at is None else at) for at in fast_at]
    return {
        **ratio_of_medians(theirs, ours),
        "run_seeds": len(run_seeds),
        "unreached": {"slow": slow_at.count(None), "fast": fast_at.count(None)},
    }


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The ratio of two medians over run seeds, with its bootstrap interval.

    Args:
        above: a value of each run seed.
        below: what they are divided by, in the same order of run seeds, which are drawn together.
    """
    chance = random.Random(0)

    def draw() -> float:
        places = chance.choices(range(len(above)), k=len(above))
        return statistics.median(above[one] for one in places) / statistics.median(
            below[one] for one in places
        )

    drawn = sorted(draw() for _ in range(_DRAWS))
    return {
        "low": round(drawn[int(_LOW * _DRAWS)], 3),
        "median": round(statistics.median(above) / statistics.median(below), 3),
        "high": round(drawn[int(_HIGH * _DRAWS)], 3),
    }


def time_ratio(none: ArmCurves, arm: ArmCurves, *fleets: Fleet, share: int = 75) -> dict[str, Any]:
    """The time that an arm without exploration takes to a share of its gain, over that of another arm.

    Args:
        none: the arm without exploration, whose gain it is.
        arm: the other one.
        fleets: each arm is on that of them on which it takes less time.
        share: of the gain, in percent: 25, 50, 75 or 100.
    """
    return ratio(none, arm, (none.iteration_s(*fleets), arm.iteration_s(*fleets)), none.targets()[share])


def summarise(
    task: str,
    curves: Mapping[tuple[str, int], Curve],
    configs: Mapping[str, RunConfig],
    chosen: Mapping[str, str],
) -> dict[str, Any]:
    """The figures of all arms.

    Args:
        task: its name.
        curves: by arm and run seed; those of one chosen arm and of its arm without exploration at least.
            Without any of `BASELINE` no dollars on demand are compared.
        configs: what each arm was run with, apart from the run seed.
        chosen: the exploring arm of each objective; one that has no curves yet is left out. The first one's
            arm without exploration gives the score at the start and the targets in the table of arms.
    """
    guarded = {
        name: [c for (arm, _), c in curves.items() if arm == name] for name in configs if ARMS[name].unguarded
    }
    arms = arm_curves({key: curve for key, curve in curves.items() if key[0] not in guarded}, configs)
    pairs = {
        objective: (arms[ARMS[name].plain], arms[name])
        for objective, name in chosen.items()
        if name in arms and ARMS[name].plain in arms
    }
    none = next(iter(pairs.values()))[0]
    return {
        "task": task,
        "signal": configs[none.name].reward.signal,
        "run_seeds": min(len(arm.curves) for pair in pairs.values() for arm in pair),
        "base": round(none.base(), 4),
        "target": round(none.base() + none.targets()[100], 4),
        "exploration": {name: _exploration(*pair, arms) for name, pair in pairs.items()},
        "against_trained_dead_groups": _against_all_groups(pairs, arms),
        "all_train": {name: _all_train(*pair) for name, pair in pairs.items()},
        "best_against_all_on_demand": _against_on_demand(arms, [*pairs.values()]),
        "prices": {"device": DEVICE, "zone": ZONE},
        "fleet": {"reserved": MIXED.reserved, "spot": MIXED.spot, "scorers": MIXED.scorers},
        "arms": {name: _arm_figures(arm, none.targets()) for name, arm in arms.items()},
        # Exact matches, and how far images have changed since before training, by run seed.
        "guarded": {
            name: {
                "run_seeds": len(some),
                "first_exact": [round(c.exact[0], 4) for c in some],
                "final_exact": [round(end_of(c.exact), 4) for c in some],
                **_image_figures(some),
            }
            for name, some in guarded.items()
        },
    }


def _exploration(none: ArmCurves, arm: ArmCurves, arms: Mapping[str, ArmCurves]) -> dict[str, Any]:
    """What the chosen arm of an objective brings on the mixed fleet."""
    seconds = {each.name: each.iteration_s(MIXED) for each in (none, arm)}
    usd = _usd_per_s(MIXED)
    counts: dict[str, Callable[[ArmCurves], float]] = {
        "iteration": lambda each: 1.0,
        "time": lambda each: seconds[each.name],
        "dollar": lambda each: usd * seconds[each.name],
        "sample": lambda each: each.trained,
        "generated": lambda each: each.generated,
    }
    targets = none.targets()
    others = [other for name, other in arms.items() if ARMS[name].plain == none.name]
    objective = ARMS[arm.name].objective
    figures: dict[str, Any] = {
        "best": arm.name,
        "against": none.name,
        "targets": {at: round(target, 4) for at, target in targets.items()},
    }
    for share, target in targets.items():
        for name, unit in counts.items():
            figures[f"{name}_ratio_{share}"] = ratio(none, arm, (unit(none), unit(arm)), target)
    public = {
        f"{share:.0%}": time_ratio(
            replace(none, costs=public_costs(share)), replace(arm, costs=public_costs(share)), MIXED
        )
        for share in PUBLIC_SHARES
    }
    return figures | {
        "exact_time_ratio_75": time_ratio(
            replace(none, measure="exact"), replace(arm, measure="exact"), MIXED
        ),
        "public_split_time_ratio_75": public,
        "time_ratio_75_against": {
            name: time_ratio(arms[name], arm, MIXED) for name in plain_arms(objective) if name in arms
        },
        **{
            f"time_ratio_{share}_by_arm": {
                other.name: time_ratio(none, other, MIXED, share=share) for other in others
            }
            for share in (75, 100)
        },
        "gain_at_equal_time": gains_at_equal(none, others, lambda each: each.iteration_s(MIXED)),
        "gain_at_equal_trained": gains_at_equal(none, others, lambda each: each.trained),
        "gain_at_equal_generated": gains_at_equal(none, others, lambda each: each.generated),
    }


def _all_train(none: ArmCurves, arm: ArmCurves) -> dict[str, Any]:
    """What the chosen arm brings where spot devices may train too."""
    either, usd = (MIXED, ALL_TRAIN), _usd_per_s(MIXED)
    figures: dict[str, Any] = {"best": arm.name, "against": none.name}
    for share, target in none.targets().items():
        for name, factor in (("time", 1.0), ("dollar", usd)):
            units = factor * none.iteration_s(*either), factor * arm.iteration_s(*either)
            figures[f"{name}_ratio_{share}"] = ratio(none, arm, units, target)
    return figures


def _against_all_groups(
    pairs: Mapping[str, tuple[ArmCurves, ArmCurves]], arms: Mapping[str, ArmCurves]
) -> dict[str, Any]:
    """Time of the second baseline over that of the chosen arm; DiffusionNFT's stands for the whole."""
    found = {
        objective: {"time_ratio_75": time_ratio(arms[name], arm, MIXED)}
        for objective, (_, arm) in pairs.items()
        if (name := ALL_GROUPS[objective]) in arms
    }
    return {**found.get("nft", {}), **found}


def gains_at_equal(
    none: ArmCurves, others: Sequence[ArmCurves], unit: Callable[[ArmCurves], float]
) -> dict[str, Any]:
    """Held-out gains of all arms once each has taken as much as the first of them to end; without a target.

    By rliable's definitions (Agarwal et al., 2021): the interquartile mean over run seeds, and the
    probability that a run seed of an arm gains more than one without exploration.

    Args:
        none: the arm without exploration.
        others: those that explore.
        unit: what an iteration of an arm takes.
    """
    arms = [none, *others]
    most = min(min(c.iterations[-1] for c in arm.curves.values()) * unit(arm) for arm in arms)
    figures: dict[str, Any] = {"amount": round(most, 3)}
    theirs: list[float] = []
    for arm in arms:  # the one without exploration first
        fits = [rising_fit(curve.iterations, arm.gains(seed)) for seed, curve in arm.curves.items()]
        ours = [float(np.interp(most / unit(arm), places, means)) for places, means in fits]
        theirs = theirs or ours
        better = statistics.fmean((a > b) + 0.5 * (a == b) for a in ours for b in theirs)
        figures[arm.name] = {
            "interquartile_mean": round(float(scipy.stats.trim_mean(ours, 0.25)), 4),
            "all": [round(value, 4) for value in ours],
            "probability_of_improvement": round(better, 3),
        }
    return figures


def _against_on_demand(
    arms: Mapping[str, ArmCurves], pairs: Sequence[tuple[ArmCurves, ArmCurves]]
) -> dict[str, Any]:
    """Return dollars of `BASELINE` on demand over those of each arm on the mixed fleet of as many devices.

    An arm trains on all devices where that takes less time. The best one is of the chosen ones.
    """
    if (baseline := arms.get(BASELINE)) is None:
        return {}
    baseline_usd = baseline.iteration_s(ON_DEMAND) * _usd_per_s(ON_DEMAND)
    found: dict[str, dict[str, Any]] = {}
    for name, arm in arms.items():
        units = baseline_usd, arm.iteration_s(MIXED, ALL_TRAIN) * _usd_per_s(MIXED)
        found[name] = {
            f"dollar_ratio_{share}": ratio(baseline, arm, units, target)
            for share, target in baseline.targets().items()
        }
    best = max((arm.name for _, arm in pairs), key=lambda name: found[name]["dollar_ratio_75"]["median"] or 0)
    return {"best": best, "against": baseline.name, **found[best], "by_arm": found}


def _arm_figures(arm: ArmCurves, targets: Mapping[int, float]) -> dict[str, Any]:
    curves = [*arm.curves.values()]

    def iterations_to(target: float) -> dict[str, Any]:
        reached = arm.reached(target, [*arm.curves])
        median = statistics.median(math.inf if at is None else at for at in reached)
        return {
            "median": None if math.isinf(median) else round(median, 2),
            "all": [at and round(at, 2) for at in reached],
        }

    spearman = [value for c in curves for value in c.spearman]
    return {
        "run_seeds": [*arm.curves],
        "iterations_to_target": iterations_to(targets[100]),
        "iterations_to_75": iterations_to(targets[75]),
        "final_exact": [round(end_of(curve.exact), 4) for curve in curves],
        "final_score": [round(end_of(curve.score), 4) for curve in curves],
        "iterations": [curve.iterations[-1] for curve in curves],
        "modelled_iteration_s": {name: round(arm.iteration_s(fleet), 4) for name, fleet in FLEETS.items()},
        "drafts": statistics.median(n for c in curves for n in c.drafts[1:-1]),
        "rollouts": statistics.median(n for c in curves for n in c.rollouts[1:-1]),
        "trained": round(arm.trained, 1),
        "costs_s": {name: round(value, 6) for name, value in vars(arm.costs).items()},
        "spearman_median": round(statistics.median(spearman), 4) if spearman else None,
        **_image_figures(curves),
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


def _image_figures(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the change of the distance to the truth, and grain over that before training, by run seed."""
    return {
        "truth_distance_change": [round(c.distance[-1] - c.distance[0], 4) for c in curves],
        "grain_ratio": [round(c.grain[-1] / c.grain[0], 3) for c in curves],
    }


def _usd_per_s(fleet: Fleet) -> float:
    on_demand, spot = (known_prices().usd_per_hour(DEVICE, kind, ZONE) for kind in ("on_demand", "spot"))
    return (fleet.reserved * on_demand + fleet.spot * spot) / 3600
