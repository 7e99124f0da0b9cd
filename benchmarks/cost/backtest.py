"""Compare the simulator with live runs that its profile was not taken from.

Live runs of the embedded models on this machine run one after another and are kept in the home
(benchmarks/cost/backtest_runs.py), so that an interrupted backtest continues. Run nothing else meanwhile.
Each is then simulated with the same settings, fleet and trace, by a profile recorded from other runs of its
kind: as many devices, and the same scorer. Devices and scorers share the machine's cores, so their times hold
for such runs only. For a run under losses, the times of a start and from a loss to its discovery come from
the other runs under losses.

The machine's speed varies by the minute. A fixed piece of work, done four times a second beside every run
(`machine_speed.py`), measures it: all times of a profile are multiplied by the work's time during the run
over that during the profile's runs. Figures named `unscaled` use profiles as recorded; `slower` has the
smallest and the largest factor. The work shares the cores with the run, so it also reflects their load.

`iteration_error`: |mean simulated iteration / mean live iteration - 1|, without the first iteration, which
warms up. `dollars_error`: the same for the whole bill, with start and evaluations. `ranking_kept`: the
simulation ranks every two runs whose live figures differ by more than half of the wider interval of their
simulated iterations in the same order, by seconds and by dollars per sample; null without such a pair.
`ranking_pairs` and `ranking_in_order` count them. `closed_form_error`: error of the simulated duration
against the formula for equal devices without losses.

    SPOTLIGHT_HOME=FOLDER python -m benchmarks.backtest [--quick] [--keep]
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cost.backtest_runs import QUICK, RUNS, KeptRun, kept_runs
from benchmarks.report import finish, options
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.simulator.comparison.what_if import undisturbed
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import Profile, WorkloadTimes
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.queries.devices import iteration_work, losses_at_work, start_times
from storage.record.run_store import RunStore
from tasks.recorded_profile import quantity_of, recorded_profile

_FULL, _SHORT = 10, 4
"""Iterations of a run."""

_DRAWS = 20
"""Simulations with values drawn from the profile, for an interval."""

_PHASES = ("rollout", "reward", "train", "driver", "evaluate")


@dataclass(frozen=True)
class Figures:
    """Figures of a run, live or simulated.

    Attributes:
        iteration_s: mean of its iterations except the first.
        usd: dollars of all devices, from the first start to the end.
        phase_s: mean seconds of each phase; `driver` is the rest of an iteration.
        losses: number of lost spot devices.
    """

    iteration_s: float
    usd: float
    phase_s: dict[str, float]
    losses: int


@dataclass(frozen=True)
class Compared:
    """A live run beside its simulation.

    Attributes:
        kept: the run.
        live, simulated: figures of both.
        low, high: bounds of simulated iterations with drawn values, over those with the values themselves.
        samples: samples per iteration.
        closed_form: duration by formula over the simulated one; None without a formula.
        slower: time of the machine's fixed work during the run, over that during the profile's runs.
        unscaled_iteration_s: iteration by the profile as recorded.
        degree: devices that shared each sample.
    """

    kept: KeptRun
    live: Figures
    simulated: Figures
    low: float
    high: float
    samples: int
    closed_form: float | None
    slower: float
    unscaled_iteration_s: float
    degree: int = 1

    @property
    def iteration_error(self) -> float:
        """Error of the mean iteration."""
        return abs(self.simulated.iteration_s / self.live.iteration_s - 1)

    @property
    def unscaled_error(self) -> float:
        """Error of the mean iteration by the profile as recorded."""
        return abs(self.unscaled_iteration_s / self.live.iteration_s - 1)

    @property
    def dollars_error(self) -> float:
        """Error of the bill."""
        return abs(self.simulated.usd / self.live.usd - 1)

    def to_json(self) -> dict[str, Any]:
        """Return a row of the table, as JSON values."""
        return {
            "run": self.kept.live.name,
            "preset": self.kept.live.preset,
            "under_losses": self.kept.trace is not None,
            "degree": self.degree,
            "losses": {"live": self.live.losses, "simulated": self.simulated.losses},
            "iteration_s": {"live": self.live.iteration_s, "simulated": self.simulated.iteration_s},
            "usd": {"live": self.live.usd, "simulated": self.simulated.usd},
            "phase_s": {
                name: [self.live.phase_s.get(name, 0.0), self.simulated.phase_s.get(name, 0.0)]
                for name in _PHASES
            },
            "interval": [self.low, self.high],
            "slower": self.slower,
            "unscaled_iteration_s": self.unscaled_iteration_s,
            "busy": self.kept.busy,
        }


def live_figures(home: Home, run_id: str, config: RunConfig) -> Figures:
    """Return the figures of a recorded run."""
    with RunStore(home).reading(run_id) as connection:
        work = iteration_work(connection, run_id)[1:]

        def read(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(f"{query} WHERE run_id = ?", [run_id]).fetchall()

        bill = read("SELECT sum((ended_at - started_at) * usd_per_hour / 3600) FROM worker_states")
        evaluated = read("SELECT avg(ended_at - started_at) FROM evaluations")
        lost = read("SELECT count(*) FILTER (kind IN ('lost', 'failed')) FROM device_events")

    def mean(column: str) -> float:
        return statistics.fmean(float(value) for value in work[column])

    phases = {name: mean(f"{name}_s") for name in ("rollout", "reward")}
    # Work beside the rollout and the wait for scores is part of those.
    phases["train"] = mean("train_device_s") / config.runtime.trainer_workers - mean("train_beside_s")
    iteration_s = mean("iteration_s")
    phases["driver"] = iteration_s - sum(phases.values())
    if evaluated[0][0] is not None:
        phases["evaluate"] = float(evaluated[0][0])
    return Figures(iteration_s, float(bill[0][0]), phases, int(lost[0][0]))


def simulated_figures(run: SimulatedRun, config: RunConfig) -> Figures:
    """Return the figures of a simulated run."""
    evaluations = sum(config.evaluates_after(iteration) for iteration in range(config.iterations + 1))
    phases = {
        name: run.phases[name] / TICKS_PER_S / (evaluations if name == "evaluate" else config.iterations)
        for name in _PHASES
    }
    return Figures(statistics.fmean(run.iterations[1:]) / TICKS_PER_S, run.usd, phases, run.losses)


def simulate(config: RunConfig, times: WorkloadTimes, kept: KeptRun, late_s: float) -> SimulatedRun:
    """Simulate a live run: its settings, its fleet, its trace."""
    price, runtime = config.price, config.runtime
    fleet = FleetPlan(
        runtime.least_reserved, runtime.least_spot, runtime.trainer_workers,
        price.reserved_usd_per_hour, price.spot_usd_per_hour,
    )  # fmt: skip
    if kept.trace is None:
        trace = Trace(tuple(TraceEvent(0.0, "add", f"spot-{n}") for n in range(fleet.spot)), 1.0)
    else:
        begins_s = (times.start + times.opening) / TICKS_PER_S + late_s
        trace = _shifted(kept.trace, begins_s)
    plan = SimulatedPlan(fleet, strategy_of(config.exploration), config.exploration.drafts)
    return Simulation(config, plan, times, Replay(trace, kept.live.notice_s)).run()


def _shifted(trace: Trace, by_s: float) -> Trace:
    events = tuple(TraceEvent(max(0.0, e.at_s + by_s), e.kind, e.instance) for e in trace.events)
    return Trace(events, max(trace.length_s, *(event.at_s for event in events)) + abs(by_s))


def first_phase_at(home: Home, run_id: str) -> float:
    """Return when a run began its first images (Unix seconds)."""
    with RunStore(home).reading(run_id) as connection:
        row = connection.execute(
            "SELECT min(started_at) FROM worker_states WHERE run_id = ? AND state = 'rollout'", [run_id]
        ).fetchone()
    assert row is not None, "a finished run has rolled out"
    return float(row[0])


def profile_for(home: Home, kept: KeptRun, runs: Sequence[KeptRun]) -> Profile | None:
    """Return a profile from other runs of the same kind; None without any."""
    calm = [other.run_id for other in _calm(kept, runs)]
    if not calm:
        return None
    profile = recorded_profile(home, *calm)
    alone = [other.run_id for other in runs if other.live.kind == kept.live.alone and other.trace is None]
    if alone:  # a device that has lost its partner
        steps = recorded_profile(home, *alone).steps
        profile = profile.model_copy(update={"steps": (*steps, *profile.steps)})
    if kept.trace is None:
        return profile
    starts, losses = [], []
    for other in runs:
        if other.live.kind == kept.live.kind and other is not kept and other.trace is not None:
            with RunStore(home).reading() as connection:
                starts += start_times(connection, other.run_id)
                lost = losses_at_work(connection, other.run_id)
            losses += _discoveries_s(other, lost)
    source = "other runs under losses"
    known = {"start_s": quantity_of(starts, source), "loss_s": quantity_of(losses, source)}
    return profile.model_copy(update={name: found for name, found in known.items() if found.value})


def _calm(kept: KeptRun, runs: Sequence[KeptRun]) -> list[KeptRun]:
    """Return the other runs of a run's kind without losses: those of its profile."""
    return [run for run in runs if run.live.kind == kept.live.kind and run is not kept and run.trace is None]


def work_s(home: Home, kept: KeptRun) -> float:
    """Return the median time of the machine's fixed work during a run's phases, in CPU seconds."""
    since = first_phase_at(home, kept.run_id)
    return statistics.median(seconds for at, seconds in kept.speed if at >= since)


def slowness(home: Home, kept: KeptRun, runs: Sequence[KeptRun]) -> float:
    """Return the time of the machine's fixed work during a run, relative to its profile's runs."""
    return work_s(home, kept) / statistics.fmean(work_s(home, other) for other in _calm(kept, runs))


def scaled(profile: Profile, slower: float) -> Profile:
    """Return a profile on a machine that is slower by this factor."""
    times = {name: found for name, found in profile.quantities.items() if name != "evaluation"}  # a ratio
    return profile.model_copy(
        update={name: one.model_copy(update={"value": one.value * slower}) for name, one in times.items()}
    )


def _discoveries_s(kept: KeptRun, lost: Sequence[float]) -> list[float]:
    """Return the seconds from each loss of an instance until the run noticed it."""
    assert kept.trace is not None, "a run under losses"
    gone = [kept.began_at + event.at_s for event in kept.trace.events if event.kind == "remove"]
    return [at - max(before) for at in lost if (before := [time for time in gone if time <= at])]


def compare(home: Home, kept: KeptRun, runs: Sequence[KeptRun]) -> Compared | None:
    """Return a live run beside its simulation; None if no profile fits."""
    recorded = profile_for(home, kept, runs)
    if recorded is None:
        return None
    slower = slowness(home, kept, runs)
    profile = scaled(recorded, slower)
    config = RunStore(home).run(kept.run_id).config
    late_s = 0.0 if kept.trace is None else kept.began_at - first_phase_at(home, kept.run_id)
    runtime = config.runtime
    shape = config.sampling.batch_size, runtime.scorer_workers, runtime.trainer_workers
    times = profile.times(*shape)
    run = simulate(config, times, kept, late_s)
    found = simulated_figures(run, config)
    unscaled = simulated_figures(simulate(config, recorded.times(*shape), kept, late_s), config)
    drawn = [
        simulate(config, profile.times(*shape, random.Random(f"draw {number}")), kept, late_s)
        for number in range(_DRAWS)
    ]
    ratios = sorted(simulated_figures(one, config).iteration_s / found.iteration_s for one in drawn)
    equal = kept.trace is None and not strategy_of(config.exploration).drafts
    closed = undisturbed(config, times, runtime.least_workers) / run.wall if equal else None
    samples = config.algorithm.prompts_per_iteration * config.algorithm.group_size
    live = live_figures(home, kept.run_id, config)
    degree = config.sequence_parallel.rollout
    return Compared(
        kept, live, found, ratios[0], ratios[-1], samples, closed, slower, unscaled.iteration_s, degree
    )


def ranking(rows: Sequence[Compared], of: Callable[[Figures], float]) -> tuple[int, int]:
    """Return the number of pairs that differ by more than the interval, and of those simulated in order."""
    pairs = kept = 0
    for one, other in itertools.combinations(rows, 2):
        a, b = of(one.live) / one.samples, of(other.live) / other.samples
        half = max((one.high - one.low), (other.high - other.low)) / 2
        if abs(a - b) <= half * min(a, b):
            continue
        pairs += 1
        kept += (a < b) == (of(one.simulated) / one.samples < of(other.simulated) / other.samples)
    return pairs, kept


def figures_of(rows: Sequence[Compared], kept: Sequence[KeptRun], iterations: int) -> dict[str, Any]:
    """Return the result's figures."""
    calm = [row for row in rows if row.kept.trace is None]
    rough = [row for row in rows if row.kept.trace is not None]
    by_time = ranking(rows, lambda figures: figures.iteration_s)
    by_usd = ranking(rows, lambda figures: figures.usd / iterations)
    shared = [row for row in rows if row.degree > 1]
    closed = [abs(row.closed_form - 1) for row in rows if row.closed_form is not None]

    def median(values: Iterable[float]) -> float | None:
        return statistics.median(some) if (some := list(values)) else None

    return {
        "runs": len(rows),
        "runs_under_losses": len(rough),
        "runs_sharing": len(shared),
        "losses": sum(row.live.losses for row in rough),
        "iterations": iterations,
        "iteration_error_median": median(row.iteration_error for row in calm),
        "iteration_error_max": max((row.iteration_error for row in calm), default=None),
        "dollars_error_median": median(row.dollars_error for row in calm),
        "error_under_losses_median": median(row.iteration_error for row in rough),
        "dollars_error_under_losses_median": median(row.dollars_error for row in rough),
        "unscaled_iteration_error_median": median(row.unscaled_error for row in calm),
        "unscaled_error_under_losses_median": median(row.unscaled_error for row in rough),
        "slower": [min(slower := [row.slower for row in rows]), max(slower)],
        "error_sharing_median": median(row.iteration_error for row in shared),
        "dollars_error_sharing_median": median(row.dollars_error for row in shared),
        "ranking_pairs": by_time[0] + by_usd[0],
        "ranking_in_order": by_time[1] + by_usd[1],
        # Without such a pair nothing is ranked.
        "ranking_kept": (by_time[0] == by_time[1] and by_usd[0] == by_usd[1])
        if any((by_time[0], by_usd[0]))
        else None,
        "closed_form_error": max(closed, default=None),
        "busy_before_max": max(run.busy for run in kept),
        "table": [row.to_json() for row in rows],
    }


def main() -> None:
    """Print one JSON line."""
    size = f"{len(QUICK)} tiny runs of {_SHORT} iterations instead of {len(RUNS)} of {_FULL}"
    arguments = options(__doc__, size).parse_args()
    wanted, iterations = (QUICK, _SHORT) if arguments.quick else (RUNS, _FULL)
    home = Home.from_environment().ensure()
    kept = kept_runs(home, wanted, iterations, "backtest-quick" if arguments.quick else "backtest")
    rows = [row for run in kept if (row := compare(home, run, kept)) is not None]
    for row in rows:
        print(
            f"{row.kept.live.name:16} iteration {row.live.iteration_s:6.2f} s live, "
            f"{row.simulated.iteration_s:6.2f} s simulated ({row.iteration_error:.1%}; unscaled "
            f"{row.unscaled_error:.1%}); bill {row.dollars_error:.1%} off; {row.live.losses} losses",
            file=sys.stderr,
        )
    finish("backtest", figures_of(rows, kept, iterations), arguments)


if __name__ == "__main__":
    main()
