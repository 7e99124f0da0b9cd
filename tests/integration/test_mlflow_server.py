"""A real `mlflow server` as the place that a run's figures are copied to, also where it goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mlflow import MlflowClient

from storage.home import Home
from storage.readers.following import FLUSH_WAIT_S, REPORT
from storage.readers.mlflow_reader import EXPERIMENT, refuse_silent_server, run_page
from storage.record.run_store import RunStore
from tests.read_runs import (
    Followed,
    begin,
    commit,
    followed,
    mlflow_points,
    mlflow_run,
    recorded_points,
    steps,
)
from tests.running_up import free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Without the second, five processes of each server wait for jobs, of which there are none.
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class MlflowServer:
    """An `mlflow server` with a store of its own, which outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, on the port that it had before, and wait until it answers."""
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
            "--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, env=os.environ | _ENVIRONMENT,
            )  # fmt: skip
        wait_until("the MLflow server answers", self._answers)

    def kill(self) -> None:
        """End it and its workers at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (
            self.folder / "server.log"
        ).read_text()
        try:
            return httpx.get(f"{self.uri}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path / "home").ensure())


def test_a_server_of_one_s_own_has_all_of_a_run(server: MlflowServer, store: RunStore):
    refuse_silent_server(server.uri, {})
    config = begin(store, "there", os.getpid(), uri=server.uri)
    commit(store, "there", 1)
    (store.home.run("there") / REPORT).write_text("<p>all</p>")
    checkpoint = store.home.run("there") / "iteration-000001" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(b"weights")
    own = Followed(store, "there", config)
    own.readers.finish("finished")
    assert own.troubles == []
    client = MlflowClient(tracking_uri=server.uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    run = mlflow_run(server.uri, "there")
    assert run is not None
    assert (run.info.status, run.info.run_name) == ("FINISHED", "there")
    page = run_page(server.uri, experiment.experiment_id, run.info.run_id)
    assert store.links("there") == {"mlflow": page}
    assert mlflow_points(server.uri, "there") == recorded_points(store.home, "there")
    assert run.data.params["tracking.uri"] == server.uri
    assert run.data.params["price.book"] == '""'
    assert run.data.tags["spotlight.preset"] == "glyphs"
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"images", "report.html", "weights.safetensors"}
    assert not (store.home.path / "mlflow.db").exists(), "nothing is kept twice"


def test_what_a_server_that_stays_away_lacks_is_named_at_the_end_and_sent_by_the_next_run(
    server: MlflowServer, store: RunStore
):
    config = begin(store, "gone", os.getpid(), uri=server.uri)
    own = Followed(store, "gone", config)
    commit(store, "gone", 1)
    own.readers.wake()
    wait_until("the first figures are there", lambda: steps(mlflow_points(server.uri, "gone")) == [1])
    server.kill()
    try:
        commit(store, "gone", 2, 3)
        own.readers.wake()
        wait_until("the silence is noticed", lambda: bool(own.troubles))
        began = time.monotonic()
        own.readers.finish("finished")
        assert time.monotonic() - began < FLUSH_WAIT_S / 2
        store.set_status("gone", "finished")
    finally:
        server.start()
    assert len(own.troubles) == 2
    assert own.troubles[0].startswith(f"MLflow at {server.uri} failed (")
    assert own.troubles[0].endswith("; the run continues, and missing data is sent later")
    assert "lacks the figures of iterations 2 to 3, the run's end" in own.troubles[1]
    assert followed(store, "next", begin(store, "next", os.getpid(), uri=server.uri)) == []
    assert mlflow_points(server.uri, "gone") == recorded_points(store.home, "gone")
