"""Compare `exploration.strategy=auto` with strategies that are set, on several tasks and fleets.

    python -m benchmarks.exploration_auto [--seeds 4] [--cases ...] [--after COMMIT] [--keep]

A case is a task, a fleet and what a sample costs there. Its fixed arms follow `plain`, `stale` and
`off_policy` with the settings that `auto` has: the same learning rate, warm-up and explored prompts. Curves
are measured, as in `benchmarks.exploration`; their seconds are modelled, iteration by iteration, from their
counts (`modelled_fleet.times_with_window`). `auto` decides by these modelled times, so it has a curve of its
own in each case, and fixed arms have one for all cases of a task. Drafts that `auto` makes on all devices,
once it changes to `off_policy`, count as if the fewer ones of the window had made them.

Where a case lets spot devices train, `plain` trains on all devices, as it does live, `stale` and `off_policy`
draft on spot devices, and `auto` chooses between both uses (`all_train`). Curves sum gradients in one shard,
so that one of `plain` stands for any number of trainers; sums of more shards differ from it by rounding. A
curve trains the whole small model, where a run lets spot devices train LoRA alone.

A run seed reaches the target, `SHARE` of the median gain with which `plain` ends, where its rising curve
does. One that never does counts as if it did at its end in the arm compared with, and as never in `auto`.
`against_plain` is the time of `plain` over that of `auto`, `against_best_fixed` that of the fixed arm that
takes least in the case, which no user knows before a run. `look_share` is the processor time of the looks
over that of the driver and devices.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.exploration.arms import Recipe, arm_config
from benchmarks.exploration.curve_store import CurveStore, CurveWanted, add_curve_options, curve_name
from benchmarks.exploration.learning_curve import Curve, measure_of
from benchmarks.exploration.modelled_fleet import MIXED, Costs, Fleet, public_costs, times_with_window
from benchmarks.exploration.summary import ratio_of_medians
from benchmarks.report import finish, options
from gpu_runtime.exploration.plan import Note
from gpu_runtime.exploration.registry import StrategyPlugin
from gpu_runtime.exploration.strategies.auto import Auto
from gpu_runtime.exploration.strategies.strategy import TrainingEvidence
from gpu_runtime.simulator.comparison.learning_curves import end_of, reached_at
from storage.config.run_config import RunConfig
from storage.config.section import Section

SHARE = 0.75
"""Share of plain's gain that is the target."""

ITERATIONS = 20
"""Iterations of a curve."""

RECIPE = Recipe(3e-4, 8)
"""Learning rate and warm-up of every arm: the ones tuned for `off_policy` on graded texts."""

ON_THE_CPU = Costs(
    rollout=0.0125, draft=0.0124, score=0.0088, train=0.0253, driver=0.019, planning=0.123, joining=0.002
)
"""Seconds of one core, as `benchmarks.exploration --task ocr-graded` has measured them; joining as in two
iterations of `plain` there with 16 shards, on 4 and on 12 devices."""

SHARDED = replace(MIXED, shards=16)
"""Four devices train four shards each; where all twelve train, four of them have two, and eight one."""


@dataclass(frozen=True)
class Case:
    """A task on a fleet.

    Attributes:
        task: name of the task.
        fleet: devices that the seconds of one core are placed on.
        costs: costs of the samples.
    """

    task: str
    fleet: Fleet
    costs: Costs

    @property
    def spot_may_train(self) -> bool:
        """True if its spot devices may train, all of them: where gradients are summed in shards."""
        return self.fleet.shards > 0

    def fleet_of(self, spot_trains: bool) -> Fleet:
        """Return the fleet of an iteration in which spot devices train, or do not."""
        return replace(self.fleet, trainers=self.fleet.devices) if spot_trains else self.fleet

    def as_live(self, config: RunConfig) -> RunConfig:
        """Return what a run on the fleet would have set of its devices, for `auto` to look at."""
        fleet = self.fleet_of(self.spot_may_train)
        runtime = {
            "reserved_workers": fleet.reserved,
            "spot_workers": fleet.spot,
            "trainer_workers": fleet.trainers,
        }
        algorithm = {"gradient_shards": fleet.shards} if self.spot_may_train else {}
        return config.changed(runtime=runtime, algorithm=algorithm)


CASES = {
    "graded texts": Case("ocr-graded", MIXED, ON_THE_CPU),
    "graded texts, one spot device": Case("ocr-graded", Fleet(8, 1, trainers=8), ON_THE_CPU),
    "graded texts, training-bound": Case("ocr-graded", MIXED, public_costs(0.65)),
    "exact texts": Case("ocr", MIXED, ON_THE_CPU),
    "exact texts, rollout-bound": Case("ocr", MIXED, public_costs(0.15)),
    "graded shapes, training-bound": Case("shapes-graded", MIXED, public_costs(0.65)),
    "exact shapes": Case("shapes", MIXED, ON_THE_CPU),
    "graded texts, all may train": Case("ocr-graded", SHARDED, ON_THE_CPU),
    "exact texts, all may train": Case("ocr", SHARDED, ON_THE_CPU),
}
"""By name. The costs that are not this CPU's give training's share of an iteration without exploration."""

FIXED = {"plain": "plain_nft_shared", "stale": "stale_32", "off_policy": "off_policy_32"}
"""Arms of `benchmarks.exploration`, by strategy."""

_LOOK = re.compile(r"the look took ([\d.e-]+) s")
_ON_SPOT = re.compile(r"iteration (\d+) trained on spot devices, too")


class CaseName(Section):
    """Options of `PLACED`."""

    case: str
    """One of `CASES`, whose times it decides by."""


class PlacedAuto(Auto):
    """`auto` in a process whose devices take turns, deciding by the times of a case's fleet.

    Args:
        chosen: the case.
    """

    def __init__(self, chosen: CaseName) -> None:
        super().__init__()
        self._case = CASES[chosen.case]

    def start(self, config: RunConfig) -> None:
        """Begin as on the fleet."""
        super().start(self._case.as_live(config))

    def after_training(self, iteration: int, evidence: TrainingEvidence) -> tuple[Note, ...]:
        """Decide by the fleet's times, and note the processor time of it."""
        seeds, in_turn = evidence.seeds, evidence.times
        if seeds is None or in_turn is None:
            return super().after_training(iteration, evidence)
        case, config = self._case, self._case.as_live(seeds.config)
        on_spot = case.spot_may_train and self.spot_trains
        fleet, updates = case.fleet_of(on_spot), config.algorithm.updates_per_iteration
        placed = replace(
            evidence,
            times=times_with_window(
                seeds.rolled, seeds.drafts or 0, in_turn.trained, case.costs, fleet, updates
            ),
            seeds=replace(
                seeds,
                config=config,
                drafters=case.fleet.devices - case.fleet.trainers,
                spot_trainers=config.runtime.spot_trainers if on_spot else 0,
            ),
        )
        began_s = time.thread_time()
        notes = super().after_training(iteration, placed)
        looked = ("look", f"the look took {time.thread_time() - began_s:.3g} s")
        if not on_spot:
            return (*notes, looked)
        return (*notes, looked, ("trainers", f"iteration {iteration} trained on spot devices, too"))


PLACED = StrategyPlugin(PlacedAuto, CaseName)


def curve_config(name: str, strategy: str, run_seed: int) -> RunConfig:
    """Return the configuration of a curve; that of `auto` differs from `off_policy` in the strategy."""
    arm = FIXED.get(strategy, FIXED["off_policy"])
    config = arm_config(CASES[name].task, arm, run_seed, RECIPE)
    if strategy in FIXED:
        return config
    chosen = {"strategy": "benchmarks.exploration.exploration_auto:PLACED", "options": {"case": name}}
    return config.changed(exploration=chosen)


def curves_wanted(names: Sequence[str], seeds: int) -> dict[tuple[str, str, int], CurveWanted]:
    """Return the curves of some cases by case, strategy and run seed, run seed by run seed."""
    wanted = {}
    for run_seed in range(seeds):
        for name in names:
            for strategy in (*FIXED, "auto"):
                config = curve_config(name, strategy, run_seed)
                kept_as = curve_name(FIXED.get(strategy, strategy), config, ITERATIONS, 1)
                wanted[name, strategy, run_seed] = CurveWanted(kept_as, config, ITERATIONS)
    return wanted


def elapsed_s(curve: Curve, case: Case, config: RunConfig, on_spot: Container[int] = ()) -> list[float]:
    """Return the modelled seconds after each iteration of a curve, 0 before the first.

    Args:
        curve: counts of the run.
        case: fleet and costs.
        config: settings of the run.
        on_spot: iterations that spot devices train, too.
    """
    algorithm = config.algorithm
    trained = curve.trained or [
        (algorithm.prompts_per_iteration - dropped) * algorithm.group_size for dropped in curve.dropped
    ]
    counts = enumerate(zip(curve.rollouts, curve.drafts, trained, strict=True), 1)
    whole_s = [
        times_with_window(
            *one, case.costs, case.fleet_of(iteration in on_spot), algorithm.updates_per_iteration
        ).whole_s
        for iteration, one in counts
    ]
    return [0.0, *np.cumsum(whole_s).tolist()]


def trained_on_spot(curve: Curve, case: Case, strategy: str) -> set[int]:
    """Return the iterations of a curve that spot devices train: of `plain` all, of `auto` what it notes."""
    if strategy == "plain" and case.spot_may_train:
        return {*range(1, len(curve.rollouts) + 1)}
    return {int(found[1]) for note in curve.notes if (found := _ON_SPOT.search(note))}


@dataclass(frozen=True)
class CaseCurves:
    """The curves of a case.

    Attributes:
        case: its fleet and costs.
        curves: by strategy and run seed.
        configs: settings by strategy, apart from the run seed.
    """

    case: Case
    curves: Mapping[str, Mapping[int, Curve]]
    configs: Mapping[str, RunConfig]

    @cached_property
    def run_seeds(self) -> list[int]:
        """Run seeds that no strategy lacks."""
        return sorted(set.intersection(*(set(members) for members in self.curves.values())))

    def gains(self, strategy: str) -> list[list[float]]:
        """Return the gains of a strategy's evaluations by run seed."""
        measure = measure_of(self.configs[strategy])
        return [self.curves[strategy][seed].gains(measure) for seed in self.run_seeds]

    def clocks_s(self, strategy: str, alone: bool = False) -> list[list[float]]:
        """Return the modelled seconds of a strategy by run seed; with `alone`, spot devices do not train."""
        curves = [self.curves[strategy][seed] for seed in self.run_seeds]
        on_spot = [() if alone else trained_on_spot(curve, self.case, strategy) for curve in curves]
        return [
            elapsed_s(curve, self.case, self.configs[strategy], some)
            for curve, some in zip(curves, on_spot, strict=True)
        ]

    @cached_property
    def target(self) -> float:
        """The gain to reach."""
        return SHARE * statistics.median(end_of(values) for values in self.gains("plain"))

    def seconds(self, strategy: str, never_s: float | None, alone: bool = False) -> list[float]:
        """Return each run seed's seconds to the target; `never_s`, or else its end, where it misses it."""
        return [
            self._reached_s(gains, clock_s, clock_s[-1] if never_s is None else never_s)
            for gains, clock_s in zip(self.gains(strategy), self.clocks_s(strategy, alone), strict=True)
        ]

    def mean_seconds(self, strategy: str) -> float:
        """Return the seconds in which the mean of all run seeds' curves gets to the target, or infinity."""
        both = self.gains(strategy), self.clocks_s(strategy)
        gains, clock_s = (np.mean([one[: ITERATIONS + 1] for one in some], axis=0) for some in both)
        return self._reached_s(gains.tolist(), clock_s.tolist(), math.inf)

    def _reached_s(self, gains: Sequence[float], clock_s: Sequence[float], never_s: float) -> float:
        at = reached_at(range(len(gains)), gains, self.target)
        return never_s if at is None else float(np.interp(at, range(len(clock_s)), clock_s))

    def all_train(self, against_best: Mapping[str, float]) -> dict[str, Any]:
        """Return the figures of spot devices that train.

        Args:
            against_best: the time of the better fixed use of spot devices over that of `auto`.
        """
        alone, on_all = self.seconds("plain", None, alone=True), self.seconds("plain", None)
        curves = [self.curves["auto"][seed] for seed in self.run_seeds]
        return {
            "auto_against_better": against_best,
            "by_mean_curves": round(min(map(self.mean_seconds, FIXED)) / self.mean_seconds("auto"), 3),
            "against_reserved_alone": ratio_of_medians(alone, on_all),
            "spot_trained": [len(trained_on_spot(curve, self.case, "auto")) for curve in curves],
        }


def case_figures(name: str, curves: Mapping[str, Mapping[int, Curve]]) -> dict[str, Any]:
    """Return the figures of a case.

    Args:
        name: name of the case.
        curves: by strategy and run seed; run seeds that lack a strategy are left out.
    """
    found = CaseCurves(CASES[name], curves, {each: curve_config(name, each, 0) for each in curves})
    run_seeds, target = found.run_seeds, found.target
    if target <= 0:
        return {"run_seeds": len(run_seeds), "target_gain": round(target, 4)}
    ours = found.seconds("auto", math.inf)
    medians = {strategy: statistics.median(found.seconds(strategy, math.inf)) for strategy in FIXED}
    best = min(medians, key=lambda strategy: medians[strategy])
    against_best = ratio_of_medians(found.seconds(best, None), ours)
    autos = [curves["auto"][seed] for seed in run_seeds]
    looks_s = sum(float(look[1]) for one in autos for note in one.notes if (look := _LOOK.search(note)))
    figures = {
        "run_seeds": len(run_seeds),
        "target_gain": round(target, 4),
        "against_plain": ratio_of_medians(found.seconds("plain", None), ours),
        "best_fixed": best,
        "against_best_fixed": against_best,
        "seconds_to_target": {
            name: None if math.isinf(value) else round(value, 2)
            for name, value in {**medians, "auto": statistics.median(ours)}.items()
        },
        "look_share": round(looks_s / sum(sum(one.driver_s) + sum(one.seconds.values()) for one in autos), 5),
        "decisions": [[note for note in curve.notes if "from here on" in note] for curve in autos],
    }
    return figures | ({"all_train": found.all_train(against_best)} if found.case.spot_may_train else {})


def summarise(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures over all cases that have a target; of `all_train` the worst case's."""
    measured = {name: one for name, one in cases.items() if "against_plain" in one}
    plain = {name: one["against_plain"] for name, one in measured.items()}
    on_all = [one["all_train"] for one in measured.values() if "all_train" in one]
    worst = min(on_all, key=lambda one: one["auto_against_better"]["median"], default=None)
    return {
        "worst_against_best_fixed": min(one["against_best_fixed"]["median"] for one in measured.values()),
        "median_against_plain": round(statistics.median(one["median"] for one in plain.values()), 3),
        "worst_against_plain": min(one["median"] for one in plain.values()),
        "wholly_below_plain": [name for name, one in plain.items() if one["high"] < 1],
        "look_share": max(one["look_share"] for one in measured.values()),
        "all_train": worst,
        "tasks": len(measured),
        "cases": cases,
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    add_curve_options(parser, 4)
    arguments = parser.parse_args()
    curves: dict[str, dict[str, dict[int, Curve]]] = {}
    wanted = curves_wanted(arguments.cases, arguments.seeds)
    for task in dict.fromkeys(CASES[name].task for name in arguments.cases):
        mine = {key: want for key, want in wanted.items() if CASES[key[0]].task == task}
        # Cases of a task share the curves of its fixed arms.
        once = {want.name: want for want in mine.values()}
        made = CurveStore.of_call(f"exploration-{task}", arguments).curves(once)
        for (name, strategy, seed), want in mine.items():
            members = curves.setdefault(name, {}).setdefault(strategy, {})
            if want.name in made:
                members[seed] = made[want.name]
    cases = {name: case_figures(name, members) for name, members in curves.items() if all(members.values())}
    if not any("against_plain" in one for one in cases.values()):
        parser.error("no case has curves of all its arms yet in which plain gains; call without --as-is")
    figures = {"curves_after": arguments.after, **summarise(cases)}
    finish("exploration_auto", figures, arguments)


if __name__ == "__main__":
    main()
