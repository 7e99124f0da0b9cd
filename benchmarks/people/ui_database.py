"""A generated home for the dashboard's benchmark: a long run on many devices, and two beside it.

Records are those of the tests' synthetic run, with more devices and prompts; everything goes through
storage's own writers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TypeVar

from storage.config.run_config import RunConfig
from storage.record.records import DeviceEvent, EvaluationRecord, IterationRecord, StateInterval
from storage.record.run_store import RunStore
from tasks.inputs import plugin_facts
from tests.sample_run import EVALUATION_S, ITERATION_S, evaluation_record, iteration_record, paid_for
from tests.sample_seeds import GROUP, explored
from tests.sample_spot import exploring

LARGE_RUN, LONG_RUN = "large", "long"
"""Identifiers of the rendered runs: with many samples, and with many iterations."""

_SEEDS = (0, 1, 2)  # of the large run, and of the two that differ from it only in the seed
_RESERVED = 4
_BEGIN = 1.7e9  # Unix seconds
_LOSS_EVERY = 10  # iterations
_PROMPT_SETS = 8  # used by iterations in turn

Written = TypeVar("Written", IterationRecord, EvaluationRecord)


@dataclass(frozen=True)
class Scale:
    """The size of a home.

    Attributes:
        samples: samples per iteration; whole groups of 16.
        devices: four of them reserved, the others spot.
        evaluate_every: iterations between two evaluations.
    """

    iterations: int
    samples: int
    devices: int
    evaluate_every: int = 20


def write_home(store: RunStore, scale: Scale) -> None:
    """Write the runs into an empty home."""
    for seed in _SEEDS:
        # The others are there for their curves; no page of the first reads their samples.
        own = scale if seed == 0 else replace(scale, samples=GROUP, devices=_RESERVED + 1)
        _write_run(store, LARGE_RUN if seed == 0 else f"beside-{seed}", own, _config(scale, seed))


def write_long_run(store: RunStore, iterations: int) -> None:
    """Write a run with few samples and many iterations."""
    scale = Scale(iterations, GROUP, _RESERVED + 2, evaluate_every=100)
    _write_run(store, LONG_RUN, scale, _config(scale, 3))


def fill(store: RunStore, count: int) -> None:
    """Write short runs until the home has so many in total."""
    scale = Scale(2, GROUP, _RESERVED + 2, evaluate_every=2)
    for number in range(len(store.home.run_ids()), count):
        _write_run(store, f"short-{number:04d}", scale, _config(scale, number))


def row_counts(store: RunStore) -> dict[str, int]:
    """Return the row counts of the tables that grow with a run."""
    tables = ("samples", "candidates", "worker_states", "iteration_metrics", "evaluation_images")
    with store.reading() as connection:
        counts = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchall() for table in tables}
    return {table: int(rows[0][0]) for table, rows in counts.items()}


def _config(scale: Scale, seed: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "large", "seed": seed, "iterations": scale.iterations,
            "algorithm": {"prompts_per_iteration": scale.samples // GROUP, "group_size": GROUP},
            "exploration": {"strategy": "stale", "candidates": 3 * GROUP},
            "runtime": {"reserved_workers": _RESERVED, "spot_workers": scale.devices - _RESERVED},
            "evaluation": {"every": scale.evaluate_every, "prompts": 96},
        }
    )  # fmt: skip


def _write_run(store: RunStore, run_id: str, scale: Scale, config: RunConfig) -> None:
    store.create_run(run_id, config, {"commit": "generated"} | plugin_facts(config), os.getpid())
    now = _BEGIN
    for iteration in range(scale.iterations + 1):
        if iteration:
            record = explored(exploring(iteration_record(run_id, iteration, now, scale.samples)))
            offset = 1000 * (iteration % _PROMPT_SETS)
            own = {
                name: [replace(one, prompt_id=one.prompt_id + offset) for one in getattr(record, name)]
                for name in ("samples", "candidates", "sample_images")
            }
            store.commit_iteration(_on_devices(replace(record, **own), scale.devices))
            store.compact(run_id, iteration)
            now += ITERATION_S
        if iteration % scale.evaluate_every == 0:
            store.commit_evaluation(_on_devices(evaluation_record(run_id, iteration, now), scale.devices))
            now += EVALUATION_S
    store.set_status(run_id, "finished")
    store.compact(run_id)
    # Files that parts have replaced are deleted with the home's next run, once no reader has them open.
    store.folder(run_id).sweep(stay_s=0)


def _on_devices(record: Written, devices: int) -> Written:
    """Return the record on so many devices; every tenth iteration loses a spot device, and another joins."""
    reserved, spot = ([i for i in record.intervals if i.worker == name] for name in ("reserved-0", "spot-0"))
    intervals = [replace(i, worker=f"reserved-{k}") for k in range(_RESERVED) for i in reserved]
    events: list[DeviceEvent] = []
    losses = record.iteration // _LOSS_EVERY
    losses_before = (record.iteration - isinstance(record, IterationRecord)) // _LOSS_EVERY
    spots = devices - _RESERVED
    for k in range(spots):
        # Losses hit the devices in turn; a replacement's name has the number of its life.
        lives = [(count + spots - 1 - k) // spots for count in (losses_before, losses)]
        before, after = (f"spot-{k}.{life}" if life else f"spot-{k}" for life in lives)
        lost_at = record.ended_at if before == after else record.started_at + 12.0
        intervals += [
            replace(i, worker=before, ended_at=min(i.ended_at, lost_at))
            for i in spot
            if i.started_at < lost_at
        ]
        if before != after:
            price = spot[0].usd_per_hour
            intervals.append(StateInterval(after, "spot", "load", lost_at + 2, record.ended_at, price))
            events.append(DeviceEvent(before, "spot", "lost", lost_at, "its process is gone"))
            events.append(DeviceEvent(after, "spot", "joined", lost_at + 2))
    if record.iteration == 0:
        first = {i.worker: i for i in intervals}
        events = [DeviceEvent(i.worker, i.market, "joined", _BEGIN) for i in first.values()]
    return replace(record, intervals=intervals, device_events=events, paid_time=paid_for(intervals))
