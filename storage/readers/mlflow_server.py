"""MLflow without its package, whose import takes seconds: pages of runs, and the check of a server."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Mapping
from typing import Any

from storage.config.tracking import TRACKING_VARIABLE
from storage.errors import ConfigurationError, quoted, shortened
from storage.home import Home
from storage.text import one_line

RUN_TAG = "spotlight.run_id"
"""The tag that ties an MLflow run to ours, so that a resumed run continues in the same one."""

LOCAL_SERVER = "http://127.0.0.1:5000"
"""The address at which `serve_command` serves."""

_FOR_TRAINING = "?workflowType=machine_learning"
"""A query that selects MLflow's menu for training; otherwise it is the one for prompts and traces."""

_ANSWER_LIMIT_S = 5.0
_SEARCH = "/api/2.0/mlflow/experiments/search"
_OTHER_LOGINS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")
"""Ways to log in that MLflow's plug-ins know, and this check does not."""


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
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            row = connection.execute(
                "SELECT experiment_id, run_uuid FROM runs JOIN tags USING (run_uuid) WHERE tags.key = ? "
                "AND tags.value = ?",
                [RUN_TAG, run_id],
            ).fetchone()
        finally:
            connection.close()
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
            f"what answers at {setting} is no MLflow server ({answer.status_code}: {_said(answer.text)}); "
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
