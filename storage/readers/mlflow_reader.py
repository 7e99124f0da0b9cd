"""Copy a run to MLflow, in the home or on a server; give the addresses of its pages; check a server.

Importing MLflow takes seconds, so only the functions that use it import it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.config.loading import flat
from storage.config.tracking import TRACKING_VARIABLE
from storage.empty_database import kept_database, provide_database
from storage.environment import PRESET
from storage.errors import ConfigurationError, quoted, shortened
from storage.home import Home
from storage.readers.figures import plain
from storage.readers.protocol import Reader, ReadRun
from storage.record.records import RunStatus
from storage.text import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "spotlight"

RUN_TAG = "spotlight.run_id"
"""The tag that ties an MLflow run to ours, so a resumed run continues in it."""

LOCAL_SERVER = "http://127.0.0.1:5000"
"""The address at which `serve_command` serves."""

_KIND_TAG = "mlflow.experimentKind"
_KIND = "custom_model_development"
"""MLflow's tag for training; without it, MLflow may open an experiment in its view of prompts and traces."""

_STATUSES: Mapping[RunStatus, str] = {
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "interrupted": "KILLED",
}

_PARAMS_A_CALL = 100
_METRICS_A_CALL = 1000
"""The number of metrics per call, MLflow's own limit."""

_PARAM_CHARACTERS = 6000

_ENVIRONMENT = {
    # MLflow itself would try for minutes, and a run's end would wait for it.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Variables that MLflow reads; the user's own values are kept."""

_OF_A_HOME = ("experiments",)
"""MLflow's own experiment has a folder by its place of creation; MLflow makes it if it is missing."""

_FOR_TRAINING = "?workflowType=machine_learning"
"""A query that selects MLflow's menu for training; otherwise it is the one for prompts and traces."""

_ANSWER_LIMIT_S = 5.0
_SEARCH = "/api/2.0/mlflow/experiments/search"
_OTHER_LOGINS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")
"""Ways to log in that MLflow's plug-ins know, and this check does not."""


class MlflowReader(Reader):
    """A run in MLflow. Resent data changes nothing there, because it carries the record's times.

    Args:
        uri: MLflow's store: address of a server, or an SQLite file.
        artifacts: folder for the artifacts of a new experiment; None leaves it to the server.
    """

    def __init__(self, uri: str, artifacts: Path | None) -> None:
        self.uri = uri
        self.artifacts = artifacts
        self.label = "MLflow" if artifacts is not None else f"MLflow at {uri}"
        self._client: MlflowClient | None = None
        self._mlflow_id = ""

    def open(self, run: ReadRun, last: int) -> int | None:
        """Find the run by its tag, or make it with its settings as parameters."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        if self.artifacts is not None:
            provide_tables(Path(self.uri.removeprefix("sqlite:///")))
        client = self._client = MlflowClient(tracking_uri=self.uri)
        experiment_id = self._experiment(client)
        found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{run.run_id}'", max_results=1)
        settings = flat_settings(run.settings)
        if found:
            self._mlflow_id = found[0].info.run_id
            client.update_run(self._mlflow_id, status="RUNNING")
        else:
            tags = tags_of(run, settings)
            made = client.create_run(experiment_id, int(run.began_at * 1000), tags, run_name=run.run_id)
            self._mlflow_id = made.info.run_id
        known = found[0].data.params if found else {}  # perhaps a part: an outage cut the rest off
        params = [Param(name, value) for name, value in settings.items() if name not in known]
        for first in range(0, len(params), _PARAMS_A_CALL):
            client.log_batch(self._mlflow_id, params=params[first : first + _PARAMS_A_CALL])
        if self.artifacts is None:
            self.page = run_page(self.uri, experiment_id, self._mlflow_id)
        return None if found and found[0].data.metrics else 0

    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Write figures in batches, with the iteration as MLflow's step."""
        from mlflow.entities import Metric

        metrics = [Metric(name, float(value), int(at * 1000), number) for name, value in figures.items()]
        for first in range(0, len(metrics), _METRICS_A_CALL):
            self._opened.log_batch(self._mlflow_id, metrics=metrics[first : first + _METRICS_A_CALL])

    def evaluation(
        self, number: int, figures: Mapping[str, float], images: Mapping[str, bytes], at: float
    ) -> None:
        """Write figures and pictures; MLflow's pages show a picture over the iterations, with a slider."""
        from PIL import Image

        self.iteration(number, figures, at)
        sent = (
            [file.path for file in self._opened.list_artifacts(self._mlflow_id, "images")] if images else []
        )
        for name, png in images.items():
            # MLflow gives each file a random ending, and writes the small one last.
            file = f"images/{name.replace('/', '~')}+step+{number}+timestamp+{int(at * 1000)}+"
            if any(path.startswith(file) and path.endswith("+compressed.webp") for path in sent):
                continue
            self._opened.log_image(
                self._mlflow_id, Image.open(io.BytesIO(png)), key=name, step=number, timestamp=int(at * 1000),
                synchronous=True,
            )  # fmt: skip

    def artifact(self, path: Path) -> None:
        """Copy a file."""
        self._opened.log_artifact(self._mlflow_id, str(path))

    def end(self, status: RunStatus, at: float) -> None:
        """Mark the run's end with MLflow's word for the status."""
        self._opened.set_terminated(self._mlflow_id, status=_STATUSES[status], end_time=int(at * 1000))

    def is_silence(self, error: Exception) -> bool:
        """Return True if the store did not answer; it would refuse again what it refused."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        if isinstance(error, MlflowException):
            return error.error_code in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
        return isinstance(error, (OSError, SQLAlchemyError))

    @property
    def _opened(self) -> MlflowClient:
        assert self._client is not None, "a reader is opened before it takes anything"
        return self._client

    def _experiment(self, client: MlflowClient) -> str:
        """Return the experiment of all runs; it is marked as training if it was not."""
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            place = None if self.artifacts is None else self.artifacts.as_uri()
            try:
                return client.create_experiment(EXPERIMENT, place, tags={_KIND_TAG: _KIND})
            except MlflowException:  # two runs may start at once, and the other one made it
                experiment = client.get_experiment_by_name(EXPERIMENT)
                if experiment is None:
                    raise
        if _KIND_TAG not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, _KIND_TAG, _KIND)
        return experiment.experiment_id


def flat_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings (JSON values) by dotted name, as `--set` takes them: MLflow has no sections."""
    texts = {}
    for name, value in flat(settings):
        text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        texts[plain(name)] = text[:_PARAM_CHARACTERS]
    return texts


def tags_of(run: ReadRun, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the tags by which MLflow's pages find a run; `settings` are from `flat_settings`."""
    tags = {
        RUN_TAG: run.run_id,
        "spotlight.preset": run.environment.get(PRESET),
        "spotlight.reward": settings.get("reward.scorer"),
        "spotlight.model": settings.get("model.path"),
        "spotlight.commit": run.environment.get("commit"),
        "spotlight.evaluates": run.evaluates,
        # MLflow's own pages have a place for these names.
        "mlflow.source.git.commit": run.environment.get("commit"),
        "mlflow.note.content": f"[This run in the dashboard]({run.page})" if run.page else "",
    }
    return {name: text for name, text in tags.items() if text}


def provide_tables(database: Path) -> None:
    """Provide MLflow's store, an SQLite file in an existing folder, if a home has none."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # 40 lines for a new store
    # It also prints tracebacks of errors that it raises; the reader's thread puts each in one line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    provide_database(database, kept_database("mlflow"), lambda: make_tables(database), _OF_A_HOME)


def make_tables(database: Path) -> None:
    """Have MLflow make its tables, which takes seconds."""
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments(max_results=1)


def run_page(server: str, experiment_id: str, mlflow_id: str) -> str:
    """Return the address of a run's page in MLflow.

    Args:
        experiment_id, mlflow_id: MLflow's identifiers of the experiment and of the run.
    """
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs/{mlflow_id}{_FOR_TRAINING}"


def experiments_page(server: str) -> str:
    """Return the address of MLflow's list of experiments, for when no run is known yet."""
    return f"{server.rstrip('/')}/#/experiments{_FOR_TRAINING}"


def serve_command(store_uri: str) -> str:
    """Return the shell command that serves a store at `LOCAL_SERVER`."""
    return "mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri " + shlex.quote(store_uri)


def mlflow_identity(home: Home, run_id: str) -> tuple[str, str] | None:
    """Return MLflow's identifiers of a run's experiment and of the run in the home's own store, if there."""
    path = home.path / "mlflow.db"
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute(
                "SELECT experiment_id, run_uuid FROM runs JOIN tags USING (run_uuid) WHERE tags.key = ? "
                "AND tags.value = ?",
                [RUN_TAG, run_id],
            ).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else (str(row[0]), str(row[1]))


def refuse_silent_server(uri: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse an address where no MLflow server answers, or one that rejects this user.

    Args:
        uri: setting `tracking.uri`; empty if no server is needed.
        environ: environment with MLflow's variables.
    """
    if not uri:
        return
    import httpx

    setting = f"tracking.uri = {quoted(uri)}"
    name, password, token = (environ.get(f"MLFLOW_TRACKING_{x}") for x in ("USERNAME", "PASSWORD", "TOKEN"))
    try:
        answer = httpx.get(
            f"{uri}{_SEARCH}", params={"max_results": 1}, timeout=_ANSWER_LIMIT_S, follow_redirects=True,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(name, password) if name and password else None, verify=_certificates(environ),
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # OSError: a file of certificates
        reason = one_line(str(error)) or type(error).__name__
        raise ConfigurationError(
            f"no MLflow server answers at {setting}: {reason}; start it, or leave the setting out to keep "
            f"the copy in the home folder ({TRACKING_VARIABLE}= in the environment, where a run is resumed)"
        ) from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        if any(environ.get(name) for name in _OTHER_LOGINS):
            return
        raise ConfigurationError(
            f"the MLflow server at {setting} refuses this user ({answer.status_code}: {_said(answer.text)}); "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    try:
        is_mlflow = answer.status_code == httpx.codes.OK and isinstance(answer.json(), dict)
    except ValueError:
        is_mlflow = False
    if not is_mlflow:
        raise ConfigurationError(
            f"the server at {setting} is not an MLflow server ({answer.status_code}: {_said(answer.text)}); "
            "give the address that its pages have, without what follows the #"
        )


def _said(text: str) -> str:
    return shortened(one_line(text)) or "nothing said"


def _certificates(environ: Mapping[str, str]) -> Any:
    """Return the verification of the server's certificate, as MLflow and its HTTP library choose it."""
    import ssl

    if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        return False
    file = environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=file) if file else True
