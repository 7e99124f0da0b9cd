"""Where a person opens a run in MLflow: a page of a server, or a command that serves the home's own file."""

from __future__ import annotations

import shlex

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
