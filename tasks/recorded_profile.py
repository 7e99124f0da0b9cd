"""A workload's profile from recorded runs: each part's time and its spread."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.simulator.profile import Profile as Profile
from gpu_runtime.simulator.profile import Quantity, StepTime
from storage.config.run_config import RunConfig, SamplingConfig
from storage.config.sequence_parallel import AUTO
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_store import RunStore, refuse_simulated

if TYPE_CHECKING:
    import pandas as pd

_LEAST_ITERATIONS = 2
"""The number of recorded iterations that a profile needs; the first is omitted if there are more."""

_MOST_SPREAD = 2.0
"""The largest deviation of values' logarithms; larger ones are capped."""

_IN_PASSING = 0.02
"""Least share of a rollout's device time at a degree that says something about it."""

_ASSUMED_START = Quantity(value=60.0, uncertainty=0.7, source="assumed: no start was recorded")
_ASSUMED_EVALUATION = Quantity(value=1.0, source="assumed: no evaluation was recorded")

_PARTS = ("score_s", "train_sample_s", "weights_s", "regroup_s", "driver_s", "opening_s")
"""Quantities of a profile that are medians of recorded values."""


@dataclass(frozen=True)
class _Recorded:
    """The recorded values of runs.

    Attributes:
        steps: seconds of a denoising step of a rollout, by samples of a batch and devices that shared them.
        evaluated: the same for evaluations, with degrees that no rollout had.
        values: values of each quantity of a profile, by its name.
    """

    steps: defaultdict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    evaluated: defaultdict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def recorded_profile(home: Home, *run_ids: str) -> Profile:
    """Return a measured profile from recorded runs with one kind and number of devices.

    Devices that share cores during a run slow each other down; the figures include this.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: a run has too few iterations, or no rollout times.
    """
    found = _Recorded()
    rows = [RunStore(home).run(run_id) for run_id in run_ids]
    for row in rows:
        refuse_simulated(row)
    configs = [row.config for row in rows]
    for run_id, config in zip(run_ids, configs, strict=True):
        if config.runtime.spot_trainers:
            raise ConfigurationError(
                f"run {run_id} may have trained on spot devices (runtime.trainer_workers), which is not "
                "simulated; use another run"
            )
        _measure(home, run_id, config, found)
    source = f"run {run_ids[0]}" if len(run_ids) == 1 else f"{len(run_ids)} runs: {', '.join(run_ids)}"
    measured = partial(quantity_of, source=source)
    # Without a rollout at a degree, an evaluation at that degree stands in for it.
    recorded = {**found.evaluated, **found.steps}
    steps = {shape: statistics.median(values) for shape, values in sorted(recorded.items())}
    ratios = [value / steps[shape] for shape, values in recorded.items() for value in values]
    starts, evaluation = found.values["start_s"], found.values["evaluation"]
    parts: dict[str, Any] = {name: measured(found.values[name]) for name in _PARTS}
    shared: dict[str, Any] = {"evidence": "measured", "source": source}
    return Profile(
        name=run_ids[0] if len(run_ids) == 1 else f"{len(run_ids)}-runs",
        summary=f"recorded by {source}; decoding and commits are in the step",
        device=configs[0].model.device,
        models=tuple(dict.fromkeys(config.model.key for config in configs)),
        # An unshared step's evidence is that of `step`.
        steps=tuple(
            StepTime(batch=size, degree=degree, seconds=seconds, **(shared if degree > 1 else {}))
            for (size, degree), seconds in steps.items()
        ),
        step=measured(ratios).model_copy(update={"value": 1.0}),
        evaluation=measured(evaluation) if evaluation else _ASSUMED_EVALUATION,
        decode_s=Quantity(value=0.0, evidence="measured", source="in the step"),
        start_s=measured(starts) if starts else _ASSUMED_START,
        **parts,
    )


def quantity_of(values: Sequence[float], source: str) -> Quantity:
    """Return the median of measured values with their spread; modelled as 0 if there are none."""
    if not values:
        return Quantity(value=0.0, source=f"not recorded by {source}")
    logs = [math.log(value) for value in values if value > 0]
    spread = min(_MOST_SPREAD, statistics.stdev(logs)) if len(logs) > 1 else 0.0
    return Quantity(value=statistics.median(values), evidence="measured", source=source, uncertainty=spread)


def _measure(home: Home, run_id: str, config: RunConfig, found: _Recorded) -> None:
    """Add the recorded values of a run to those found."""
    from storage.record.queries.devices import (
        changes_of_state,
        degree_times,  # pandas
        degree_work,
        evaluation_work,
        iteration_work,
        opening_s,
        start_times,
    )

    values = found.values
    with RunStore(home).reading(run_id) as connection:
        work = iteration_work(connection, run_id)
        evaluations = evaluation_work(connection, run_id)
        changes = changes_of_state(connection, run_id)
        values["start_s"] += start_times(connection, run_id)
        opening = opening_s(connection, run_id)
        sharing = degree_work(connection, run_id)
        timed = degree_times(connection, run_id, 0, config.iterations)
    known = {int(d): float(s) for d, s in zip(timed["degree"], timed["step_s"], strict=True)}
    if len(work) < _LEAST_ITERATIONS:
        raise ConfigurationError(
            f"run {run_id} has {len(work)} recorded iterations; a profile needs {_LEAST_ITERATIONS}"
        )
    work = work.iloc[1:] if len(work) > _LEAST_ITERATIONS else work
    steps = _steps_by_degree(config.sampling, config.sequence_parallel.rollout, work, sharing, known)
    if not steps:
        raise ConfigurationError(
            f"run {run_id} recorded no rollout whose samples were all shared alike; use another run"
        )
    size = config.sampling.batch_size
    for degree, step_s in steps.items():
        found.steps[size, degree] += step_s
    values["train_sample_s"] += list(work["train_device_s"] / work["samples"])
    if opening is not None:
        values["opening_s"].append(opening)
    waits_s = 0.0
    for name, state in (("weights_s", "load"), ("regroup_s", "regroup")):
        if lasted_s := [float(value) for value in changes[changes["state"] == state]["lasted_s"]]:
            values[name] += lasted_s
            waits_s += statistics.median(lasted_s)
    values["score_s"] += _score_s(work, size, config.runtime.scorer_workers, waits_s, max(steps))
    before_rollout = strategy_of(config.exploration).drafts_before_rollout
    values["driver_s"] += _driver_s(work, before_rollout, config.runtime.trainer_workers)
    if (shared := config.sequence_parallel.evaluate) == AUTO:
        return
    batches = -(-evaluations["images"] // size)
    evaluated = evaluations["rollout_device_s"] / (batches * config.sampling.evaluate_steps) / shared
    seconds = list(evaluated[evaluated > 0])
    if shared in steps:  # relative to a rollout's steps
        values["evaluation"] += [value / statistics.median(steps[shared]) for value in seconds]
    else:
        found.evaluated[size, shared] += seconds


def _steps_by_degree(
    sampling: SamplingConfig,
    wanted: int,
    work: pd.DataFrame,
    sharing: pd.DataFrame,
    known: Mapping[int, float],
) -> dict[int, list[float]]:
    """Return the seconds of a rollout's denoising step, one value per informative iteration.

    With a fixed degree, an iteration shows them for the degree of all its samples. If measured times chose
    it, those give the ratio between degrees, and the total device time gives a step's time including
    decoding and commits.

    Args:
        wanted: the degree of the settings.
        sharing: device time by iteration and degree.
        known: measured seconds of a step by degree, if they chose it.
    """
    found: defaultdict[int, list[float]] = defaultdict(list)
    columns = (work[name] for name in ("iteration", "samples", "rollout_device_s"))
    for iteration, samples, device_s in zip(*columns, strict=True):
        steps = -(-int(samples) // sampling.batch_size) * sampling.rollout_steps
        spent = {1: float(device_s)}
        if wanted != 1:
            mine = sharing[(sharing["phase"] == "iteration") & (sharing["iteration"] == iteration)]
            spent = {int(d): float(s) for d, s in zip(mine["degree"], mine["device_s"], strict=True)}
            spent = {degree: spent_s for degree, spent_s in spent.items() if spent_s > _IN_PASSING * device_s}
        if not device_s or not spent:
            continue
        if len(spent) == 1 and not known:
            (degree,) = spent
            found[degree].append(float(device_s) / degree / steps)
        elif known.keys() >= spent.keys():
            # Ratio of the recorded time to that of equally many measured steps.
            alone = sum(spent_s / degree / known[degree] for degree, spent_s in spent.items()) / steps
            for degree, step_s in known.items():
                found[degree].append(step_s * alone)
    return dict(found)


def _score_s(
    work: pd.DataFrame, batch_size: int, scorers: int, waits_s: float, degree: int = 1
) -> list[float]:
    """Return a scorer's seconds per image, from the waits for rollouts' last scores.

    Devices deliver in turns of one batch per device; scorers judge a turn's images while the next turn is
    generated. Either they keep up, and the wait is for the last turn only, or they lag from the first turn
    on.

    Args:
        work: iterations; their device-seconds show how many devices they had.
        waits_s: seconds of a rollout in which devices do not generate.
    """
    samples, waited_s = work["samples"], work["reward_s"]
    devices = ((work["device_s"] / work["iteration_s"]).round() // degree).clip(lower=1)
    batches = -(-samples // batch_size)
    turns = -(-batches // devices)
    turn_s = (work["rollout_s"] - waits_s) / turns
    lags = waited_s > turn_s
    last = (samples / batches * (batches - (turns - 1) * devices)).clip(upper=samples)
    judging_s = waited_s + ((turns - 1) * turn_s).where(lags, 0 * turn_s)  # NaN if unknown
    return list((judging_s * scorers / samples.where(lags, last)).dropna())


def _driver_s(work: pd.DataFrame, before_rollout: bool, trainers: int) -> list[float]:
    """Return iterations' time outside their phases: waiting for commits and drafts, publishing, records.

    Args:
        before_rollout: True if the rollout waits for drafts.
    """
    phases = ["rollout_s", "reward_s", "redraft_s", *(("explore_s",) if before_rollout else ())]
    beside_s = work["train_beside_s"].fillna(0.0)  # missing in older runs
    training_s = work["train_device_s"] / trainers - beside_s
    left_s = work["iteration_s"] - work[phases].sum(axis="columns") - training_s
    return list(left_s.where(work["rollout_s"].notna()).clip(lower=0.0).dropna())
