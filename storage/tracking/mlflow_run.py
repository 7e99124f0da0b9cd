"""One run in MLflow's store, in the home or on a server: found or made, written to, ended."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.environment import PRESET
from storage.record.records import RunStatus
from storage.tracking.addresses import RUN_TAG, run_page
from storage.tracking.mlflow_tables import provide_tables
from storage.tracking.names import mlflow_name, plain

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "spotlight"

_KIND_TAG = "mlflow.experimentKind"
_KIND = "custom_model_development"
"""What MLflow calls training; an experiment without the tag may be taken for one of prompts and traces."""

_STATUSES: Mapping[RunStatus, str] = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "interrupted": "KILLED",
}

_PARAMS_A_CALL = 100
_METRICS_A_CALL = 1000
"""MLflow's own limits of a call."""

_PARAM_CHARACTERS = 6000


@dataclass
class MlflowRun:
    """A run in MLflow; used on one thread only. Methods raise what `failures` names.

    Attributes:
        uri: MLflow's store: the address of a server, or a file of SQLite.
        artifacts: folder of the artifacts of a new experiment; None leaves it to the server.
        run_id: our run.
        params, tags: of the run, where it has to be made.
        began_at: when it began, in Unix seconds, where it has to be made; None takes the present.
    """

    uri: str
    artifacts: Path | None
    run_id: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    began_at: float | None = None
    _client: MlflowClient | None = field(default=None, init=False)
    _experiment_id: str = field(default="", init=False)
    _mlflow_id: str = field(default="", init=False)

    def open(self) -> None:
        """Find or make the run; does nothing once that has worked."""
        if self._client is not None:
            return
        from mlflow import MlflowClient
        from mlflow.entities import Param

        if self.artifacts is not None:
            provide_tables(Path(self.uri.removeprefix("sqlite:///")))
        client = MlflowClient(tracking_uri=self.uri)
        experiment_id = self._experiment_id = self._experiment(client)
        found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{self.run_id}'", max_results=1)
        if found:
            self._mlflow_id = found[0].info.run_id
            client.update_run(self._mlflow_id, status="RUNNING")
        else:
            tags = {**self.tags, RUN_TAG: self.run_id}
            began_ms = None if self.began_at is None else int(self.began_at * 1000)
            made = client.create_run(experiment_id, began_ms, tags, run_name=self.run_id)
            self._mlflow_id = made.info.run_id
        if not (found and found[0].data.params):
            params = [Param(name, value) for name, value in self.params.items()]
            for first in range(0, len(params), _PARAMS_A_CALL):
                client.log_batch(self._mlflow_id, params=params[first : first + _PARAMS_A_CALL])
        self._client = client

    @property
    def page(self) -> str:
        """Address of the opened run's page; empty where the store is a file, which no server shows."""
        if self.artifacts is not None:
            return ""
        return run_page(self.uri, self._experiment_id, self._mlflow_id)

    def log_metrics(self, iteration: int, figures: Mapping[str, float], at_ms: int) -> None:
        """Write an iteration's figures.

        Args:
            iteration: their step.
            figures: by the names that the record has them under.
            at_ms: when they were taken, in Unix milliseconds.
        """
        from mlflow.entities import Metric

        metrics = [
            Metric(mlflow_name(name), float(value), at_ms, iteration) for name, value in figures.items()
        ]
        for first in range(0, len(metrics), _METRICS_A_CALL):
            self._opened().log_batch(self._mlflow_id, metrics=metrics[first : first + _METRICS_A_CALL])

    def logged_steps(self, figure: str) -> set[int]:
        """The iterations that MLflow has a figure of; earlier versions logged it without a section."""
        names = (mlflow_name(figure), figure)
        client = self._opened()
        return {one.step for name in names for one in client.get_metric_history(self._mlflow_id, name)}

    def log_images(self, iteration: int, pictures: Mapping[str, bytes], at_ms: int) -> None:
        """Write pictures (PNG) by name; MLflow's pages show the same name over iterations, with a slider.

        Args:
            iteration: MLflow's step.
            pictures: PNG files, by name.
            at_ms: Unix time in milliseconds.
        """
        from PIL import Image

        for name, png in pictures.items():
            self._opened().log_image(
                self._mlflow_id, Image.open(io.BytesIO(png)), key=name, step=iteration, timestamp=at_ms,
                synchronous=True,
            )  # fmt: skip

    def log_artifact(self, path: Path) -> None:
        """Copy a file, or a folder under its name."""
        client = self._opened()
        if path.is_dir():
            client.log_artifacts(self._mlflow_id, str(path), artifact_path=path.name)
        else:
            client.log_artifact(self._mlflow_id, str(path))

    def end(self, status: RunStatus, at: float | None = None) -> None:
        """Mark the run's end, by MLflow's word for the status; at Unix seconds, or now."""
        at_ms = None if at is None else int(at * 1000)
        self._opened().set_terminated(self._mlflow_id, status=_STATUSES[status], end_time=at_ms)

    def _opened(self) -> MlflowClient:
        assert self._client is not None, "the tracker opens the run before each job"
        return self._client

    def _experiment(self, client: MlflowClient) -> str:
        """The experiment of all runs; one that an earlier version made is marked as training, too."""
        from mlflow.exceptions import MlflowException

        for last in (False, True):
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is not None:
                if _KIND_TAG not in experiment.tags:
                    client.set_experiment_tag(experiment.experiment_id, _KIND_TAG, _KIND)
                return experiment.experiment_id
            try:
                place = None if self.artifacts is None else self.artifacts.as_uri()
                return client.create_experiment(EXPERIMENT, place, tags={_KIND_TAG: _KIND})
            except MlflowException:
                if last:
                    raise
                # Two runs began at once and the other one made it: look again.
        raise AssertionError("unreachable: the second round returns or raises")


def failures() -> tuple[type[Exception], ...]:
    """What MLflow and its libraries raise: the store is locked, damaged or full, or a server is silent."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, SQLAlchemyError, CommandError, OSError)


def is_silence(error: Exception) -> bool:
    """Whether a server did not answer, or could not; what it refused, it would refuse again."""
    from mlflow.exceptions import MlflowException
    from requests import ConnectionError, Timeout

    if isinstance(error, MlflowException):
        return error.error_code in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
    return isinstance(error, ConnectionError | Timeout)


def flat_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """All settings (JSON values) by dotted name, as `--set` takes them: MLflow's parameters are flat."""
    return dict(_flat(settings, ""))


def tags_of(params: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The tags by which MLflow's pages find a run.

    Args:
        params: its settings, as `flat_settings` gives them.
        environment: as it is stored with the run.
    """
    tags = {
        "spotlight.preset": environment.get(PRESET),
        "spotlight.reward": params.get("reward.scorer"),
        "spotlight.model": params.get("model.path"),
        "spotlight.commit": environment.get("commit"),
        # MLflow's own pages have a column for this name.
        "mlflow.source.git.commit": environment.get("commit"),
    }
    return {name: text for name, text in tags.items() if text}


def _flat(values: Mapping[str, Any], section: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{section}{plain(str(key))}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        else:
            text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
            yield name, text[:_PARAM_CHARACTERS]
