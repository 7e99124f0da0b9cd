"""Runs for readers to follow, and what MLflow has of them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.readers.figures import moments_after
from storage.readers.following import Readers
from storage.readers.mlflow_reader import EXPERIMENT, RUN_TAG
from storage.record.run_store import RunStore
from tests.sample_run import ITERATION_S, evaluation_record, iteration_record

BEGAN_AT = 1_700_000_000.0
LIFE_S = 10_000.0
"""From the beginning of one life of a run to that of the next."""

Points = dict[str, list[tuple[int, float]]]
"""Figure -> iteration and value of each point, by iteration."""


def gone_process() -> int:
    """The pid of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def begin(store: RunStore, run_id: str, pid: int, **tracking: Any) -> RunConfig:
    """Enter a run with an evaluation of the untouched model."""
    config = RunConfig.model_validate({"name": "of-a-name", "tracking": tracking})
    store.create_run(run_id, config, {"commit": "cf706f1", "preset": "glyphs"}, pid)
    store.commit_evaluation(evaluation_record(run_id, 0, BEGAN_AT, 4, 2))
    return config


def commit(
    store: RunStore, run_id: str, *iterations: int, life: int = 0, metrics: Mapping[str, float] | None = None
) -> None:
    """Commit iterations, each at its time; those of a later life come after all that was before."""
    for iteration in iterations:
        record = iteration_record(run_id, iteration, BEGAN_AT + life * LIFE_S + iteration * ITERATION_S, 8)
        store.commit_iteration(dataclasses.replace(record, metrics=record.metrics | dict(metrics or {})))


class Followed:
    """The readers of a run, and what is told of them from now on."""

    def __init__(self, store: RunStore, run_id: str, config: RunConfig) -> None:
        self._folder, self._names = store.folder(run_id), config.tracking.to
        self._before = len(self._folder.events())
        self.readers = Readers(store, run_id, config.tracking)

    @property
    def troubles(self) -> list[str]:
        """The events of readers."""
        events = self._folder.events()[self._before :]
        return [event["message"] for event in events if event["kind"] in self._names]


def followed(
    store: RunStore, run_id: str, config: RunConfig, status: Any = "finished", wait_s: float = 60.0
) -> list[str]:
    """Have the readers of a run follow it to its end; what was told of them."""
    store.set_status(run_id, status)
    own = Followed(store, run_id, config)
    own.readers.wake()
    own.readers.finish(status, wait_s)
    return own.troubles


def mlflow_run(uri: str, run_id: str) -> Run | None:
    """Our run in MLflow."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return None
    runs = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{run_id}'")
    return runs[0] if runs else None


def mlflow_points(uri: str, run_id: str) -> Points:
    """All points that MLflow has of a run."""
    run = mlflow_run(uri, run_id)
    if run is None:
        return {}
    client, own = MlflowClient(tracking_uri=uri), run.info.run_id
    histories = {name: client.get_metric_history(own, name) for name in run.data.metrics}
    return {name: sorted((one.step, one.value) for one in points) for name, points in histories.items()}


def recorded_points(home: Home, run_id: str) -> Points:
    """The same of the record."""
    found: Points = defaultdict(list)
    with RunStore(home).reading(run_id) as connection:
        for moment in moments_after(connection, run_id, -1):
            for name, value in moment.figures.items():
                found[name].append((moment.number // 2, value))
    return {name: sorted(points) for name, points in found.items()}


def steps(points: Points, figure: str = "score/reward_mean") -> Sequence[int]:
    """The iterations of a figure's points."""
    return [step for step, _ in points.get(figure, [])]
