"""A real `mlflow server` as the place that a run's figures are copied to, also where it goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mlflow import MlflowClient

import storage.tracking.tracker
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.tracking.addresses import run_page
from storage.tracking.mlflow_run import EXPERIMENT
from storage.tracking.server import refuse_silent_server
from storage.tracking.tracker import Tracker
from tests.running_up import free_ports, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Without the second, five processes of each server wait for jobs, of which there are none.
_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


class MlflowServer:
    """An `mlflow server` with a store of its own, which outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports()[0]
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
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def config(server: MlflowServer) -> RunConfig:
    return RunConfig.model_validate({"name": "smoke", "tracking": {"uri": server.uri}})


def history(server: MlflowServer, run_id: str, figure: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracking_uri=server.uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id], f"tags.`spotlight.run_id` = '{run_id}'")
    return sorted((one.step, one.value) for one in client.get_metric_history(run.info.run_id, figure))


def test_a_server_of_one_s_own_has_all_of_a_run(server: MlflowServer, home: Home, tmp_path: Path):
    refuse_silent_server(server.uri, {})
    troubles: list[str] = []
    pages: list[str] = []
    tracker = Tracker(home, troubles.append, pages.append)
    tracker.start("there", config(server), {"commit": "cf706f1", "preset": "smoke"})
    tracker.metrics(1, {"reward_mean": 0.5, "cost_total_usd": 0.25})
    tracker.made_artifact("report.html", lambda file: file.write_text("<p>all</p>"))
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    tracker.artifact(tmp_path / "weights.safetensors")
    tracker.finish("finished")
    assert troubles == []
    client = MlflowClient(tracking_uri=server.uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    [run] = client.search_runs([experiment.experiment_id], "tags.`spotlight.run_id` = 'there'")
    assert (run.info.status, run.info.run_name) == ("FINISHED", "there")
    assert pages == [run_page(server.uri, experiment.experiment_id, run.info.run_id)]
    assert run.data.metrics == {"score/reward_mean": 0.5, "cost/total_usd": 0.25}
    assert run.data.params["tracking.uri"] == server.uri
    assert run.data.params["price.book"] == '""'
    assert run.data.tags["spotlight.preset"] == "smoke"
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"report.html", "weights.safetensors"}
    assert not (home.path / "mlflow.db").exists(), "nothing is kept twice"


def test_figures_of_a_server_s_absence_are_sent_when_it_is_back(
    server: MlflowServer, home: Home, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage.tracking.tracker, "RETRY_S", 0.5)
    troubles: list[str] = []
    tracker = Tracker(home, troubles.append)
    tracker.start("away", config(server), {})
    tracker.metrics(1, {"reward_mean": 0.1})
    wait_until("the first figures are there", lambda: history_or_none(server, "away") == [(1, 0.1)])
    server.kill()
    for iteration in (2, 3, 4):
        tracker.metrics(iteration, {"reward_mean": iteration / 10})
    wait_until("the silence is noticed", lambda: bool(troubles))
    assert troubles[0].startswith(f"MLflow at {server.uri} does not answer (")
    assert troubles[0].endswith("; the run goes on, and its figures are kept and sent when it does")
    server.start()
    wait_until("the kept figures are sent", lambda: len(troubles) == 2)
    tracker.metrics(5, {"reward_mean": 0.5})
    tracker.finish("finished")
    assert troubles[1:] == [f"MLflow at {server.uri} answers again; the figures that were kept are sent"]
    assert history(server, "away", "score/reward_mean") == [(step, step / 10) for step in range(1, 6)]


def test_what_a_server_that_stays_away_lacks_is_named_at_the_end(server: MlflowServer, home: Home):
    troubles: list[str] = []
    tracker = Tracker(home, troubles.append)
    tracker.start("gone", config(server), {})
    tracker.metrics(1, {"reward_mean": 0.1})
    wait_until("the first figures are there", lambda: history_or_none(server, "gone") == [(1, 0.1)])
    server.kill()
    try:
        for iteration in (2, 3):
            tracker.metrics(iteration, {"reward_mean": 0.2})
        wait_until("the silence is noticed", lambda: bool(troubles))
        tracker.images(3, {"held-out/001": lambda: b"never made"})
        tracker.finish("finished")
    finally:
        server.start()
    assert len(troubles) == 2
    lacking = "the figures of iterations 2 to 3, the images after iteration 3, the run's end"
    assert f"lacks {lacking}" in troubles[1]
    assert troubles[1].endswith("; all figures are in the run's record")


def history_or_none(server: MlflowServer, run_id: str) -> list[tuple[int, float]] | None:
    """The scores of a run, or None while MLflow does not know it yet."""
    try:
        return history(server, run_id, "score/reward_mean")
    except (AssertionError, ValueError):
        return None
