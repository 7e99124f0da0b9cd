"""Where a person opens a run in MLflow: a page of a server, or a command that serves the home's own file."""

from __future__ import annotations

import shlex
import sqlite3

from storage.home import Home

RUN_TAG = "spotlight.run_id"
"""Tag that ties an MLflow run to ours, so that a resumed run goes on in the same one."""

LOCAL_SERVER = "http://127.0.0.1:5000"
"""Where `serve_command` serves."""

_FOR_TRAINING = "?workflowType=machine_learning"
"""Without it MLflow's menu is the one for prompts and traces, whatever the experiment is."""


def run_page(server: str, experiment_id: str, mlflow_id: str) -> str:
    """Address of a run's page in MLflow.

    Args:
        server: address of the MLflow server.
        experiment_id, mlflow_id: MLflow's identifiers of the experiment and of the run.
    """
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs/{mlflow_id}{_FOR_TRAINING}"


def experiments_page(server: str) -> str:
    """Address of MLflow's list of experiments, where no run is known yet."""
    return f"{server.rstrip('/')}/#/experiments{_FOR_TRAINING}"


def serve_command(store_uri: str) -> str:
    """The shell command that serves a store at `LOCAL_SERVER`."""
    return "mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri " + shlex.quote(store_uri)


def mlflow_identity(home: Home, run_id: str) -> tuple[str, str] | None:
    """Return MLflow's identifiers of a run in the home's own store: of its experiment, and its own.

    Read without MLflow, whose import takes seconds; None where the store has no such run or is damaged.
    """
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
