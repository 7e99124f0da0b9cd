"""Simulated runs in the tables of recorded ones, marked, so that the dashboard and the report show them."""

from __future__ import annotations

import os
import statistics
from bisect import bisect_left
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_runtime.simulator.comparison.learning_curves import LearningCurves
from gpu_runtime.simulator.comparison.policies import Policy
from gpu_runtime.simulator.comparison.to_score import arm_of
from gpu_runtime.simulator.simulated_run import LedgerPhase, SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.clock import now
from storage.config.run_config import RunConfig
from storage.environment import SIMULATED, environment
from storage.record.records import DeviceEvent, EvaluationRecord, IterationRecord, StateInterval
from storage.record.results import run_result
from storage.record.run_store import RunStore


def record_run(
    store: RunStore,
    run_id: str,
    config: RunConfig,
    policy: Policy,
    run: SimulatedRun,
    about: str,
    curves: LearningCurves | None = None,
) -> None:
    """Record a simulated run, which kept its intervals, with status `simulated`; its times end now.

    It has no samples, drafts or images. The scores of its evaluations are those of the policy's learning
    curve, the median of its run seeds; without a curve it has no evaluations, and their time is part
    of the iterations.

    Args:
        about: basis of the simulation, in words.
    """
    strategy = "plain" if policy.arm == "larger_batch" else policy.arm
    exploration = config.exploration.model_copy(update={"strategy": strategy, "options": {}})
    config = config.model_copy(update={"name": f"simulated-{policy.name}", "exploration": exploration})
    facts = environment() | {SIMULATED: f"policy {policy.name}: {policy.summary}; {about}"}
    began = now() - run.wall_s
    store.create_run(run_id, config, facts, os.getpid(), began)
    store.set_status(run_id, "simulated")  # first, so that it is never taken for a live run
    arm = None if curves is None else arm_of(policy, [run], curves)
    curve = () if curves is None or arm is None else curves.arms.get(arm, ())
    for part in _parts(run, began, evaluates=bool(curve)):
        span = run_id, part.iteration, part.iteration, part.started_at, part.ended_at
        if part.phase == "evaluation":
            score = statistics.median(float(np.interp(part.iteration, c.iterations, c.values)) for c in curve)
            evaluation = EvaluationRecord(*span, score, score)
            store.commit_evaluation(replace(evaluation, intervals=part.intervals, device_events=part.events))
        else:
            metrics = {"iteration_s": part.ended_at - part.started_at, "cost_usd": part.usd}
            record = IterationRecord(*span, metrics, intervals=part.intervals, device_events=part.events)
            store.commit_iteration(record)
    store.set_summary(run_id, run_result(store, run_id))
    store.compact(run_id)


@dataclass
class _Part:
    """An iteration or an evaluation of a run, in Unix seconds."""

    iteration: int
    phase: LedgerPhase
    started_at: float
    ended_at: float
    intervals: list[StateInterval] = field(default_factory=list)
    events: list[DeviceEvent] = field(default_factory=list)

    @property
    def usd(self) -> float:
        return sum(interval.usd for interval in self.intervals)


def _parts(run: SimulatedRun, began: float, evaluates: bool) -> list[_Part]:
    """Return the parts of a run that began at a Unix time, each with the work and the events of its devices.

    Unless it `evaluates`, each evaluation belongs to its iteration, and that of the untouched model to the
    first.
    """
    parts: list[_Part] = []
    for iteration, phase, end in run.ends:
        since = parts[-1].ended_at if parts else began
        until = began + end / TICKS_PER_S
        if evaluates or phase == "iteration" or not parts:
            parts.append(_Part(iteration, phase, since, until))
        else:
            parts[-1].ended_at = until
    if not evaluates and parts[0].phase == "evaluation":
        parts[1].started_at = parts.pop(0).started_at
    ends = [part.ended_at for part in parts]
    for one in run.intervals:
        times = {name: began + getattr(one, name) / TICKS_PER_S for name in ("started_at", "ended_at")}
        parts[bisect_left(ends, times["ended_at"])].intervals.append(replace(one, **times))
    for happened in run.device_events:
        at = began + happened.at / TICKS_PER_S
        parts[min(bisect_left(ends, at), len(parts) - 1)].events.append(replace(happened, at=at))
    return parts
