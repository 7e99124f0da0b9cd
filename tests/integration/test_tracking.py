"""MLflow gets the figures, a resumed run goes on in the same one, and a failure stops nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient

import storage.tracking
from storage.config.run_config import RunConfig
from storage.errors import StorageError
from storage.home import Home
from storage.tracking import EXPERIMENT, Tracker


def runs_of(home: Home) -> list:
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home that the tests share: MLflow takes seconds to make its tables."""
    return Home(tmp_path_factory.mktemp("home"))


def test_figures_artifacts_and_a_resumed_run(home: Home, tmp_path: Path):
    troubles: list[str] = []
    image = tmp_path / "before.txt"
    image.write_text("picture")
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / "after.txt").write_text("better")
    tracker = Tracker(home, troubles.append)
    tracker.start("glyphs-1", RunConfig(), {"kind": "test"})
    figures = {"reward_mean": 0.5, "odd name@%": 1.0, "missing": float("nan")}
    tracker.metrics(1, figures)
    figures["reward_mean"] = 99.0  # the caller's own again: must not show
    tracker.artifact(image)
    tracker.finish("interrupted")
    [run] = runs_of(home)
    assert run.info.status == "KILLED"
    assert run.data.metrics["reward_mean"] == 0.5
    assert run.data.metrics["odd name__"] == 1.0
    assert run.data.params["sampling.noise_level"] == "0.7"
    assert run.data.tags["spotlight.run_id"] == "glyphs-1"
    assert [p.read_text() for p in home.artifacts.rglob("before.txt")] == ["picture"]

    again = Tracker(home, troubles.append)
    again.start("glyphs-1", RunConfig(), {})
    again.metrics(2, {"reward_mean": 0.7})
    again.artifact(tmp_path / "gallery")
    again.finish("finished")
    other = Tracker(home, troubles.append)
    other.start("glyphs-2", RunConfig(), {})
    other.finish("failed")
    runs = {run.data.tags["spotlight.run_id"]: run for run in runs_of(home)}
    assert set(runs) == {"glyphs-1", "glyphs-2"}
    assert runs["glyphs-1"].info.run_id == run.info.run_id
    assert (runs["glyphs-1"].info.status, runs["glyphs-2"].info.status) == ("FINISHED", "FAILED")
    history = MlflowClient(tracking_uri=home.mlflow_uri).get_metric_history(run.info.run_id, "reward_mean")
    assert [(m.step, m.value) for m in history] == [(1, 0.5), (2, 0.7)]
    assert [p.parent.name for p in home.artifacts.rglob("after.txt")] == ["gallery"]
    assert troubles == []


@pytest.mark.parametrize("refusing", [False, True])
def test_a_broken_store_is_told_once_and_stops_nothing(tmp_path: Path, refusing: bool):
    home = Home(tmp_path).ensure()
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    troubles: list[str] = []

    def note(message: str) -> None:
        troubles.append(message)
        if refusing:
            raise StorageError("locked")

    tracker = Tracker(home, note)
    tracker.start("glyphs-1", RunConfig(), {})
    for iteration in range(3):
        tracker.metrics(iteration, {"reward_mean": 0.5})
    tracker.finish("finished")
    assert len(troubles) == 1
    assert "the run goes on without it" in troubles[0]
    assert "\n" not in troubles[0]


def test_a_missing_artifact_does_not_cost_the_figures(home: Home, tmp_path: Path):
    troubles: list[str] = []
    tracker = Tracker(home, troubles.append)
    tracker.start("glyphs-3", RunConfig(), {})
    tracker.artifact(tmp_path / "never written")
    tracker.metrics(1, {"reward_mean": 0.5})
    tracker.finish("finished")
    assert len(troubles) == 1
    [run] = [run for run in runs_of(home) if run.data.tags["spotlight.run_id"] == "glyphs-3"]
    assert run.data.metrics == {"reward_mean": 0.5}


def test_training_does_not_wait_for_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()
    monkeypatch.setattr(storage.tracking._MlflowRun, "open", lambda run: released.wait(60) and None)
    logged: list[int] = []
    monkeypatch.setattr(storage.tracking._MlflowRun, "log_metrics", lambda run, i, *rest: logged.append(i))
    monkeypatch.setattr(storage.tracking._MlflowRun, "end", lambda run, status: None)
    troubles: list[str] = []
    tracker = Tracker(Home(tmp_path), troubles.append)
    tracker.start("glyphs-1", RunConfig(), {})
    for iteration in range(5):
        tracker.metrics(iteration, {"reward_mean": 0.5})
    assert logged == [], "MLflow hangs, and we came here all the same"
    released.set()
    tracker.finish("finished")
    assert logged == [0, 1, 2, 3, 4]
    assert troubles == []


def test_finish_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()
    monkeypatch.setattr(storage.tracking._MlflowRun, "open", lambda run: released.wait(60) and None)
    monkeypatch.setattr(storage.tracking._MlflowRun, "end", lambda run, status: None)
    troubles: list[str] = []
    tracker = Tracker(Home(tmp_path), troubles.append)
    tracker.start("glyphs-1", RunConfig(), {})
    tracker.finish("finished", wait_s=0.05)
    released.set()
    assert troubles == ["MLflow did not take everything within 0.05 s; the rest is in DuckDB only"]


def test_without_a_start_it_does_nothing(tmp_path: Path):
    tracker = Tracker(Home(tmp_path))
    tracker.metrics(1, {"a": 1.0})
    tracker.finish("finished")
    assert list(tmp_path.iterdir()) == []
