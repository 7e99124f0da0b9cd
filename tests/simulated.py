"""Small workloads for the simulator: times of whole seconds, and fleets of a few devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import Profile, Quantity, StepTime, WorkloadTimes
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.virtual_time import ticks
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.config.run_config import RunConfig


def small_config(iterations: int = 3, prompts: int = 4, every: int = 0, **more: Any) -> RunConfig:
    """Prompts of four samples, batches of four, five steps; an evaluation of four images.

    Training waits for all scores, since advantages are divided by the batch's deviation.
    """
    return RunConfig.model_validate(
        {
            "iterations": iterations,
            "sampling": {"batch_size": 4, "rollout_steps": 5, "evaluate_steps": 7, "window_stop": 5},
            "algorithm": {"prompts_per_iteration": prompts, "group_size": 4, "advantage_std": "batch"},
            "evaluation": {"every": every, "prompts": 4},
            # Of another machine: the simulation takes it to have the four prompts of an evaluation.
            "prompts": {"evaluate": "elsewhere.txt"},
            "runtime": {"commit_steps": 2, "spot_workers": 8},
            **more,
        }
    )


def spot_trace(*events: tuple[float, Any, str]) -> Trace:
    """Spot instances that come and go, in a trace that is longer than a run."""
    return Trace(tuple(TraceEvent(*event) for event in events), 1000.0)


STAYS = spot_trace((0.0, "add", "s"))
"""One spot instance from the beginning."""


def times_of(shared: Mapping[int, float] | None = None, **seconds: float) -> WorkloadTimes:
    """Times in seconds; those that are not named are a round number.

    Args:
        shared: a denoising step by how many devices share it, of those above one.
        seconds: of each part.
    """
    known = {
        "step": 1, "decode": 1, "score": 0.25, "train_sample": 1, "weights": 2, "start": 10, "regroup": 1,
        "driver": 0, "opening": 0, "loss": 0,
    }  # fmt: skip
    values = known | seconds
    steps = {degree: ticks(value) for degree, value in ({1: values["step"]} | dict(shared or {})).items()}
    counted: dict[str, Any] = {name: ticks(value) for name, value in values.items()}
    return WorkloadTimes(**counted, shared=steps, shared_evaluation=steps)


def small_profile(uncertainty: float = 0.0) -> Profile:
    """The same times as a profile."""

    def about(value: float) -> Quantity:
        return Quantity(value=value, uncertainty=uncertainty)

    return Profile(
        name="small", steps=(StepTime(batch=4, seconds=1.0),), step=about(1), decode_s=about(0.25),
        score_s=about(0.5), train_sample_s=about(1), weights_s=about(2),
        start_s=about(10), regroup_s=about(1),
    )  # fmt: skip


def simulated(
    config: RunConfig,
    reserved: int,
    spot: int = 0,
    trace: Trace | None = None,
    strategy: Strategy = PLAIN,
    notice_s: float = 0.0,
    times: WorkloadTimes | None = None,
    ways: Mapping[str, Any] | None = None,
    instance_devices: int = 0,
    **more: Any,
) -> SimulatedRun:
    """A run on so many devices; `ways` are further fields of its plan."""
    fleet = FleetPlan(reserved, spot, 1, 10.0, 2.5, instance_devices=instance_devices)
    replay = None if trace is None else Replay(trace, notice_s)
    plan = SimulatedPlan(fleet, strategy, **(ways or {}))
    return Simulation(config, plan, times or times_of(), replay, **more).run()


def same(one: SimulatedRun, other: SimulatedRun) -> bool:
    """Two runs differ at most in the events by which they were worked out."""
    return replace(one, events=0) == replace(other, events=0)


def check_conserved(runs: Sequence[SimulatedRun], reserved: int) -> None:
    """Every paid moment of a run is in one state, and repeating phases changes nothing.

    Args:
        runs: the same one twice: with phases repeated, and with all of them worked out; both with intervals.
        reserved: its reserved devices.
    """
    run = runs[0]
    for market in ("reserved", "spot"):
        assert sum(time for (of, _), time in run.spent.items() if of == market) == run.paid[market]
    assert run.paid["reserved"] == reserved * run.wall
    ends: dict[str, float] = {}
    for interval in sorted(run.intervals, key=lambda i: (i.worker, i.started_at)):
        assert interval.started_at < interval.ended_at
        assert ends.get(interval.worker, interval.started_at) == interval.started_at
        ends[interval.worker] = interval.ended_at
    assert same(run, runs[1])
