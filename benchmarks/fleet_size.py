"""Spot devices and the trainers' window decided live, against a fixed fleet, under one replayed trace.

Runs of the embedded model on this machine, in processes without Ray, by the runtime that `spotlight train`
uses. Each device sleeps for what is left of a set time (`benchmarks/paced_workers.py`), so that devices do
not share the machine's cores. Both arms take their instances from the same trace, replayed in its own time:
one rents what `decide_capacity` wants, and its trainers leave a rollout when `LiveWindow` says so; the other
rents all that is there, up to `runtime.spot_workers`, and its trainers stay. They take turns.

`paid_ratio`: device-seconds paid for, decided over fixed, of runs of as many iterations with an evaluation
before and after; `usd_ratio` and `wall_ratio` likewise. `identical`: all runs end with the same weights.
`prediction_error`: paid
device-seconds of the simulator over those of the decided runs, less 1; its times are measured in the fixed
runs. Values of the first turn are in `turns`, beside those of the others.

    python -m benchmarks.fleet_size [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.paced_workers import SamplePacedCluster
from benchmarks.report import add_keep_option, finish
from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.fleet import rented_capacity
from gpu_runtime.fleet.capacity_decision import (
    CapacityDecision,
    IterationForecast,
    RentingTerms,
    TrainingTime,
)
from gpu_runtime.runtime import Runtime
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, ticks
from gpu_runtime.spot.traces.files import write_trace
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.environment import environment

_MOST = 5
_SETTINGS = (
    "runtime.cluster=local", "runtime.capacity=trace", f"runtime.spot_workers={_MOST}",
    "runtime.scorer_workers=1", "runtime.commit_steps=1", "algorithm.prompts_per_iteration=6",
    "prompts.evaluate=builtin:smoke-evaluate", "evaluation.prompts=8", "evaluation.every=0",
    "reward.signal=graded",
)  # fmt: skip
"""Six batches an iteration, of four denoising steps. With graded scores nearly all groups are trained on."""

_FULL, _QUICK = (16, 3), (5, 1)
"""Iterations of a run, and turns."""


def _trace() -> Trace:
    """Five instances at first; some are lost without notice, and others come."""
    first = [TraceEvent(0.0, "add", f"i-{number}") for number in range(_MOST)]
    later = [
        TraceEvent(25.0, "remove", "i-1"), TraceEvent(40.0, "add", "i-5"), TraceEvent(60.0, "remove", "i-0"),
        TraceEvent(75.0, "add", "i-6"), TraceEvent(100.0, "remove", "i-3"), TraceEvent(130.0, "add", "i-7"),
    ]  # fmt: skip
    return Trace((*first, *later), 3600.0)


@dataclass(frozen=True)
class LiveArm:
    """What a live run came to.

    Attributes:
        paid_s: device-seconds that were paid for.
        usd: their price.
        wall_s: from the start of the first device to the end of the last evaluation.
        weights: digest of the trained weights.
        losses: workers that were lost.
        notes: the decisions, in words.
        batch_s, start_s: medians of measured times: of a batch, of a start.
        train_s, driver_s: means: of an iteration's training, and of what an iteration takes beside it and the
            rollout. Prompt groups whose scores are equal are not trained on, so that training times differ.
    """

    paid_s: float
    usd: float
    wall_s: float
    weights: str
    losses: int
    notes: list[str]
    batch_s: float
    start_s: float
    train_s: float
    driver_s: float


def _all_that_is_there(
    forecast: IterationForecast | None, terms: RentingTerms, held: int
) -> CapacityDecision:
    return CapacityDecision(terms.most, f"{terms.most} as the settings say")


def live(config: RunConfig, decided: bool) -> LiveArm:
    """One run; its evaluations before and after are on the bill.

    Args:
        config: of the run.
        decided: whether the number of spot devices is decided; else all that the trace has are rented. The
            settings say whether trainers leave.
    """
    measured: list[tuple[str, float]] = []
    train_s: list[float] = []
    alone_s: list[float] = []  # of it, after the last score
    fixed = patch.object(rented_capacity, "decide_capacity", _all_that_is_there)
    with nullcontext() if decided else fixed, _measuring(measured):
        cluster = SamplePacedCluster(config)
        try:
            with Runtime(config, cluster) as runtime:
                runtime.evaluate(runtime.compared_prompts)
                for iteration in range(1, config.iterations + 1):
                    plan = runtime.explore(iteration)
                    rolled = runtime.rollout(plan)
                    scores, began_s = runtime.reward(rolled), time.monotonic()
                    trained = runtime.train(rolled, scores)
                    alone_s.append(time.monotonic() - began_s)
                    train_s.append(alone_s[-1] + trained.beside_s)
                runtime.evaluate(runtime.compared_prompts)
                done = runtime.collect()
                intervals, notes = done.intervals, done.notes
                paid_s = sum(part.paid_s for part in done.paid_time)
                weights = hashlib.sha256(runtime.blobs()["weights.safetensors"]).hexdigest()
                losses = len(runtime.lost_workers)
        finally:
            cluster.shutdown()
    wall_s = max(part.ended_at for part in intervals) - min(part.started_at for part in intervals)

    def times(name: str) -> list[float]:
        return [seconds for known, seconds in measured if known == name] or [0.0]

    driver_s = max(0.0, statistics.mean(times("rest")) - statistics.mean(alone_s[:-1]))
    return LiveArm(
        paid_s, sum(part.usd for part in intervals), wall_s, weights, losses, notes,
        statistics.median(times("batch")), statistics.median(times("start")),
        statistics.mean(train_s), driver_s,
    )  # fmt: skip


def _measuring(into: list[tuple[str, float]]) -> Any:
    """Keeps what a run measures of its iterations, for the simulator's profile."""
    measured = rented_capacity.MeasuredTimes

    class Keeping(measured):
        def add_batch_time(self, seconds: float) -> None:
            into.append(("batch", seconds))
            super().add_batch_time(seconds)

        def add_rest(self, seconds: float, training: TrainingTime | None) -> None:
            into.append(("rest", seconds))
            super().add_rest(seconds, training)

        def add_start(self, seconds: float) -> None:
            into.append(("start", seconds))
            super().add_start(seconds)

    return patch.object(rented_capacity, "MeasuredTimes", Keeping)


def predicted(config: RunConfig, arms: list[LiveArm], trace: Trace) -> float:
    """Paid device-seconds of a decided run, simulated.

    Args:
        config: of the run.
        arms: live runs whose times it has.
        trace: under which it runs.
    """

    def middle(of: Callable[[LiveArm], float]) -> float:
        return statistics.median(of(arm) for arm in arms)

    steps = config.sampling.rollout_steps
    samples = config.algorithm.prompts_per_iteration * config.algorithm.group_size
    step_s = middle(lambda arm: arm.batch_s) / steps
    times = WorkloadTimes(
        step=ticks(step_s), decode=0, score=0, train_sample=ticks(middle(lambda arm: arm.train_s) / samples),
        weights=0, start=ticks(middle(lambda arm: arm.start_s)), regroup=0, step_s=step_s,
        driver=ticks(middle(lambda arm: arm.driver_s)),
    )  # fmt: skip
    price = config.price
    fleet = FleetPlan(1, _MOST, 1, price.reserved_usd_per_hour, price.spot_usd_per_hour, decided="cheapest")
    run = Simulation(config, SimulatedPlan(fleet, DraftTiming.NEVER), times, Replay(trace)).run()
    return sum(run.paid.values()) / TICKS_PER_S


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one turn of a few iterations")
    add_keep_option(parser)
    chosen = parser.parse_args()
    iterations, turns = _QUICK if chosen.quick else _FULL
    began_at = environment()["commit"]
    trace = _trace()
    arms: dict[bool, list[LiveArm]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.csv"
        write_trace(trace, file)
        settings = [*_SETTINGS, f"iterations={iterations}", f"runtime.options.file={file}"]
        configs = {
            decided: load_config("smoke", [*settings, f"runtime.trainers_leave={str(decided).lower()}"], {})
            for decided in arms
        }
        for turn in range(turns):
            for decided in (True, False) if turn % 2 else (False, True):
                arms[decided].append(live(configs[decided], decided))
    both = [*arms[True], *arms[False]]
    simulated_s = predicted(configs[True], arms[False], trace)

    def total(decided: bool, of: Callable[[LiveArm], float]) -> float:
        return sum(of(arm) for arm in arms[decided])

    def ratio(of: Callable[[LiveArm], float]) -> float:
        return total(True, of) / total(False, of)

    paid_s = [arm.paid_s for arm in arms[True]]
    figures = {
        "paid_ratio": ratio(lambda arm: arm.paid_s),
        "usd_ratio": ratio(lambda arm: arm.usd),
        "wall_ratio": ratio(lambda arm: arm.wall_s),
        "identical": len({arm.weights for arm in both}) == 1,
        "prediction_error": simulated_s / statistics.mean(paid_s) - 1,
        "simulated_paid_s": simulated_s,
        "iterations": iterations,
        "losses": sum(arm.losses for arm in both),
        "turns": {
            name: [{"paid_s": arm.paid_s, "usd": arm.usd, "wall_s": arm.wall_s} for arm in arms[decided]]
            for name, decided in (("decided", True), ("fixed", False))
        },
        "decisions": arms[True][0].notes,
    }
    finish("fleet_size", figures, chosen.keep, began_at=began_at)


if __name__ == "__main__":
    main()
