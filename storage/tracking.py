"""MLflow beside the run: a second place to compare runs in, never one that a run depends on.

All calls go to MLflow from one thread with a queue, so training waits for none of them. The first
one takes seconds, of MLflow's import and its tables: it comes after the first iteration, so as not
to slow the start down. A failure is logged, told once to `on_trouble`, and
the run goes on: every figure is in DuckDB too, and hours of GPU time are worth more than this copy.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.clock import now
from storage.config.run_config import RunConfig
from storage.database.records import RunStatus
from storage.errors import SpotlightError
from storage.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "spotlight"
RUN_TAG = "spotlight.run_id"
"""Tag that ties an MLflow run to ours, so that a resumed run goes on in the same one."""

FLUSH_WAIT_S = 60.0
"""How long `finish` waits for what is still queued."""

_STATUSES: Mapping[str, str] = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "interrupted": "KILLED",
}
_NOT_IN_METRIC_NAMES = re.compile(r"[^A-Za-z0-9_./ -]")

_log = logging.getLogger(__name__)


class Tracker:
    """Copies a run's figures to MLflow, in the background. No method raises for MLflow's sake.

    Args:
        home: where MLflow's store and artifacts lie.
        on_trouble: told once, on the tracker's thread, if MLflow fails; to make it an event.
    """

    def __init__(self, home: Home, on_trouble: Callable[[str], None] | None = None) -> None:
        self.home = home
        self._on_trouble = on_trouble
        self._told = False
        self._jobs: queue.Queue[Callable[[_MlflowRun], None] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._needed = threading.Event()
        """Set once there is more to copy than the start of a run."""

    def start(self, run_id: str, config: RunConfig, tags: Mapping[str, str]) -> None:
        """Begin: MLflow's run of this `run_id` is created, or opened again where there is one."""
        # Read when mlflow is imported, on the thread below.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("DO_NOT_TRACK", "true")
        target = _MlflowRun(self.home, run_id, _flat(config), dict(tags))
        # A daemon, so that a training process that crashes does not stay for MLflow's sake.
        self._thread = threading.Thread(target=self._work, args=(target,), name="mlflow", daemon=True)
        self._thread.start()
        self._put(_MlflowRun.open)

    def metrics(self, iteration: int, values: Mapping[str, float]) -> None:
        """Queue an iteration's figures; they are written in one batch."""
        now_ms = int(now() * 1000)
        figures = dict(values)  # a copy: the caller may go on filling its own
        self._put(lambda run: run.log_metrics(iteration, figures, now_ms))
        if iteration > 0:
            self._needed.set()

    def artifact(self, path: Path) -> None:
        """Queue a copy of a file or folder; it must stay until `finish`."""
        self._put(lambda run: run.log_artifact(path))

    def finish(self, status: RunStatus, wait_s: float = FLUSH_WAIT_S) -> None:
        """Write what is queued, mark the run's end, and stop the thread; without `start`, nothing.

        Of a run that was cancelled before its first iteration was done MLflow gets nothing.
        """
        if self._thread is None or (status == "cancelled" and not self._needed.is_set()):
            return
        self._needed.set()
        self._put(lambda run: run.end(_STATUSES[status]))
        self._jobs.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            # Who has stopped the run does not wait for MLflow, and need not be warned of it.
            level = logging.DEBUG if status == "cancelled" else logging.WARNING
            self._trouble(
                f"MLflow did not take everything within {wait_s:g} s; the rest is in DuckDB only", level
            )
        self._thread = None

    def _put(self, job: Callable[[_MlflowRun], None]) -> None:
        if self._thread is not None and self._thread.is_alive():  # else nobody would ever take it
            self._jobs.put(job)

    def _work(self, target: _MlflowRun) -> None:
        self._needed.wait()
        try:
            failures = _failures()
        except ImportError as error:
            self._trouble(f"MLflow cannot be imported ({error}); its figures are in DuckDB only")
            return
        while (job := self._jobs.get()) is not None:
            try:
                target.open()
                job(target)
            except failures as error:
                reason = str(error).partition("\n")[0]  # SQLAlchemy adds the statement, over many lines
                self._trouble(f"MLflow failed ({type(error).__name__}: {reason}); the run goes on without it")

    def _trouble(self, message: str, level: int = logging.WARNING) -> None:
        _log.log(logging.DEBUG if self._told else level, message)
        told, self._told = self._told, True
        if told or self._on_trouble is None:
            return
        try:
            self._on_trouble(message)
        except SpotlightError as error:
            _log.warning("could not note MLflow's trouble either: %s", error)


class _MlflowRun:
    """One MLflow run; used on the tracker's thread only."""

    def __init__(self, home: Home, run_id: str, params: dict[str, str], tags: dict[str, str]) -> None:
        self.home = home
        self.run_id = run_id
        self.params = params
        self.tags = {**tags, RUN_TAG: run_id}
        self.client: MlflowClient | None = None
        self.mlflow_id = ""

    def open(self) -> None:
        """Find or make the MLflow run; does nothing once that has worked."""
        if self.client is not None:
            return
        from mlflow import MlflowClient
        from mlflow.entities import Param

        for noisy in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(noisy).setLevel(logging.WARNING)  # 40 lines for a new store
        self.home.ensure()
        client = MlflowClient(tracking_uri=self.home.mlflow_uri)
        experiment_id = self._experiment(client)
        found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{self.run_id}'", max_results=1)
        if found:
            self.mlflow_id = found[0].info.run_id
            client.update_run(self.mlflow_id, status="RUNNING")
        else:
            created = client.create_run(experiment_id, tags=self.tags, run_name=self.run_id)
            self.mlflow_id = created.info.run_id
            client.log_batch(self.mlflow_id, params=[Param(k, v) for k, v in self.params.items()])
        self.client = client

    def log_metrics(self, iteration: int, values: Mapping[str, float], at_ms: int) -> None:
        from mlflow.entities import Metric

        names = {name: _NOT_IN_METRIC_NAMES.sub("_", name) for name in values}
        metrics = [Metric(names[name], float(value), at_ms, iteration) for name, value in values.items()]
        self._opened().log_batch(self.mlflow_id, metrics=metrics)

    def log_artifact(self, path: Path) -> None:
        client = self._opened()
        if path.is_dir():
            client.log_artifacts(self.mlflow_id, str(path), artifact_path=path.name)
        else:
            client.log_artifact(self.mlflow_id, str(path))

    def end(self, status: str) -> None:
        self._opened().set_terminated(self.mlflow_id, status=status)

    def _opened(self) -> MlflowClient:
        assert self.client is not None, "the worker opens the run before each job"
        return self.client

    def _experiment(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        for last in (False, True):
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is not None:
                return experiment.experiment_id
            try:
                return client.create_experiment(EXPERIMENT, artifact_location=self.home.artifacts.as_uri())
            except MlflowException:
                if last:
                    raise
                # Two runs began at once and the other one made it: look again.
        raise AssertionError("unreachable: the second round returns or raises")


def _failures() -> tuple[type[Exception], ...]:
    """What MLflow and the libraries under it raise when its store is locked, damaged or full."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, CommandError, OSError)


def _flat(config: RunConfig) -> dict[str, str]:
    """Settings by dotted name, as text; MLflow's parameters are flat."""
    params: dict[str, str] = {}
    values: dict[str, Any] = config.model_dump(mode="json")
    for name, value in values.items():
        inner = value if isinstance(value, dict) else None
        if inner is None:
            params[name] = str(value)
        else:
            params |= {f"{name}.{key}": str(entry) for key, entry in inner.items()}
    return params
