"""A profile of a workload from recorded runs: what each part took there, and its spread."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.models.embedded.folder import EMBEDDED_PREFIX
from gpu_runtime.simulator.profile import Profile as Profile
from gpu_runtime.simulator.profile import Quantity, StepTime
from storage.config.run_config import RunConfig
from storage.database.run_store import RunStore
from storage.errors import ConfigurationError
from storage.home import Home

_LEAST_ITERATIONS = 2
"""Recorded iterations that a profile needs; the first is left out where there are more."""

_MOST_SPREAD = 2.0

_ASSUMED_START = Quantity(value=60.0, uncertainty=0.7, source="assumed: no start was recorded")
_ASSUMED_EVALUATION = Quantity(value=1.0, source="assumed: no evaluation was recorded")


_PARTS = ("score_s", "train_sample_s", "weights_s", "regroup_s", "driver_s", "opening_s")
"""Quantities of a profile that are medians of what was recorded."""


@dataclass(frozen=True)
class _Recorded:
    """What runs recorded.

    Attributes:
        steps: seconds of a denoising step of a rollout, by samples of a batch.
        values: of each quantity of a profile, by its name.
    """

    steps: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def model_key(config: RunConfig) -> str:
    """The model and size of a run, as profiles name them."""
    model = config.model
    if model.path.startswith(EMBEDDED_PREFIX):
        return model.path
    return f"{model.family} {model.width or 512}x{model.height or 512}"


def recorded_profile(home: Home, *run_ids: str) -> Profile:
    """A profile from what runs recorded: every figure is measured, as long as one of them recorded it.

    Devices that shared cores while a run went on slow each other; the figures have that in them.

    Args:
        home: where the runs are.
        run_ids: at least one; of devices of one kind, and as many beside each other.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: one has too few iterations, or its devices shared samples.
    """
    found = _Recorded()
    configs = [RunStore(home).run(run_id).config for run_id in run_ids]
    for run_id, config in zip(run_ids, configs, strict=True):
        _measure(home, run_id, config, found)
    source = f"run {run_ids[0]}" if len(run_ids) == 1 else f"{len(run_ids)} runs: {', '.join(run_ids)}"

    def measured(values: Sequence[float]) -> Quantity:
        return quantity_of(values, source)

    steps = {size: statistics.median(values) for size, values in sorted(found.steps.items())}
    ratios = [value / steps[size] for size, values in found.steps.items() for value in values]
    starts, evaluation = found.values["start_s"], found.values["evaluation"]
    return Profile(
        name=run_ids[0] if len(run_ids) == 1 else f"{len(run_ids)}-runs",
        summary=f"recorded by {source}; decoding and commits are in the step",
        device=configs[0].model.device,
        models=tuple(dict.fromkeys(map(model_key, configs))),
        steps=tuple(StepTime(batch=size, seconds=seconds) for size, seconds in steps.items()),
        step=measured(ratios).model_copy(update={"value": 1.0}),
        evaluation=measured(evaluation) if evaluation else _ASSUMED_EVALUATION,
        decode_s=Quantity(value=0.0, evidence="measured", source="in the step"),
        start_s=measured(starts) if starts else _ASSUMED_START,
        **{name: measured(found.values[name]) for name in _PARTS},
    )


def quantity_of(values: Sequence[float], source: str) -> Quantity:
    """The median of measured values, with their spread; modelled as 0 where there are none.

    Args:
        values: in the unit of the quantity.
        source: where they were measured.
    """
    if not values:
        return Quantity(value=0.0, source=f"not recorded by {source}")
    typical = statistics.median(values)
    return Quantity(value=typical, evidence="measured", source=source, uncertainty=_spread(values))


def _measure(home: Home, run_id: str, config: RunConfig, found: _Recorded) -> None:
    """Add what a run recorded to what was found."""
    from storage.database.queries.workload import (  # pandas
        changes_of_state,
        evaluation_work,
        iteration_work,
        opening_s,
        start_times,
    )

    values = found.values
    with RunStore(home).database.reading() as connection:
        work = iteration_work(connection, run_id)
        evaluations = evaluation_work(connection, run_id)
        changes = changes_of_state(connection, run_id)
        values["start_s"] += start_times(connection, run_id)
        opening = opening_s(connection, run_id)
    if len(work) < _LEAST_ITERATIONS:
        raise ConfigurationError(
            f"run {run_id} has {len(work)} recorded iterations; a profile needs {_LEAST_ITERATIONS}"
        )
    if config.sequence_parallel.largest > 1:
        raise ConfigurationError(f"devices of run {run_id} shared samples; take one whose devices work alone")
    work = work[1:] if len(work) > _LEAST_ITERATIONS else work
    size, steps = config.sampling.batch_size, config.sampling.rollout_steps
    step_s = list(work["rollout_device_s"] / (-(-work["samples"] // size) * steps))
    if not all(step_s):
        raise ConfigurationError(f"run {run_id} recorded no time of rollouts; take another run")
    found.steps[size] += step_s
    values["train_sample_s"] += list(work["train_device_s"] / work["samples"])
    if opening is not None:
        values["opening_s"].append(opening)
    loads = [float(value) for value in changes[changes["state"] == "load"]["lasted_s"]]
    values["weights_s"] += loads
    values["regroup_s"] += [float(value) for value in changes[changes["state"] == "regroup"]["lasted_s"]]
    weights_s = statistics.median(loads) if loads else 0.0
    columns = {str(name): [float(value) for value in work[name]] for name in work.columns}
    for entries in zip(*columns.values(), strict=True):
        row = dict(zip(columns, entries, strict=True))
        values["score_s"] += _score_s(config, row, row["rollout_s"] - weights_s)
        values["driver_s"] += _driver_s(config, row)
    evaluated = evaluations["rollout_device_s"] / (
        -(-evaluations["images"] // size) * config.sampling.evaluate_steps
    )
    values["evaluation"] += [float(value) / statistics.median(step_s) for value in evaluated if value > 0]


def _score_s(config: RunConfig, row: Mapping[str, float], rollout_s: float) -> list[float]:
    """Seconds in which a scorer judges one image, from how long a rollout's last scores were waited for.

    Devices deliver in turns, as many batches as they are; scorers judge a turn's images while the next turn
    is generated. Either they keep up, and the wait is that for the last turn, or they lag behind from the
    first one on.

    Args:
        config: of the run.
        row: of the iteration; its device-seconds tell how many devices it had.
        rollout_s: that devices generated for.
    """
    samples, reward_s = row["samples"], row["reward_s"]
    if math.isnan(rollout_s) or math.isnan(reward_s) or math.isnan(row["iteration_s"]):
        return []
    devices = max(1, round(row["device_s"] / row["iteration_s"]))
    batches = -(-samples // config.sampling.batch_size)
    turns = -(-batches // devices)
    turn_s = rollout_s / turns
    lags = reward_s > turn_s
    images = samples if lags else min(samples, samples / batches * (batches - (turns - 1) * devices))
    judging_s = reward_s + (turns - 1) * turn_s if lags else reward_s
    return [judging_s * config.runtime.scorer_workers / images]


def _driver_s(config: RunConfig, row: Mapping[str, float]) -> list[float]:
    """What an iteration took beside its phases: waiting for commits and drafts, publishing, records."""
    before_rollout = strategy_of(config).timing is DraftTiming.BEFORE_ROLLOUT
    phases = ("rollout_s", "reward_s", "redraft_s", *(("explore_s",) if before_rollout else ()))
    known = [row[name] for name in phases if not math.isnan(row[name])]
    training_s = row["train_device_s"] / config.runtime.trainer_workers
    left_s = row["iteration_s"] - sum(known) - training_s
    return [] if math.isnan(left_s) or math.isnan(row["rollout_s"]) else [max(0.0, left_s)]


def _spread(values: Sequence[float]) -> float:
    """Deviation of the values' logarithms, at most 2; 0 of fewer than two."""
    logs = [math.log(value) for value in values if value > 0]
    return min(_MOST_SPREAD, statistics.stdev(logs)) if len(logs) > 1 else 0.0
