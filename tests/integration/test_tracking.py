"""MLflow gets the figures, a resumed run goes on in the same one, and a failure stops nothing."""

from __future__ import annotations

import threading
from base64 import b64decode
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.utils.validation import _validate_metric

from storage.config.run_config import RunConfig
from storage.errors import ServerError, StorageError
from storage.home import Home
from storage.tracking.mlflow_run import EXPERIMENT, MlflowRun
from storage.tracking.names import mlflow_name
from storage.tracking.tracker import Tracker
from tests.sample_pictures import png


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
    facts = {"commit": "cf706f1", "preset": "glyphs"}
    tracker.start("glyphs-1", RunConfig(name="mine"), facts, {"kind": "test"})
    figures = {"reward_mean": 0.5, "rollout_s": 2.0, "odd name@%": 1.0, "missing": float("nan")}
    tracker.metrics(1, figures)
    figures["reward_mean"] = 99.0  # the caller's own again: must not show
    tracker.artifact(image)
    tracker.finish("interrupted")
    [run] = runs_of(home)
    assert run.info.status == "KILLED"
    assert run.data.metrics["score/reward_mean"] == 0.5
    assert run.data.metrics["phase_s/rollout"] == 2.0
    assert run.data.metrics["exploration/odd name-u0040--u0025-"] == 1.0
    assert run.data.params["sampling.noise_level"] == "0.7"
    expected = {
        "spotlight.run_id": "glyphs-1", "spotlight.preset": "glyphs", "spotlight.commit": "cf706f1",
        "mlflow.source.git.commit": "cf706f1", "spotlight.reward": "ocr", "kind": "test",
    }  # fmt: skip
    assert run.data.tags.items() >= expected.items()
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
    history = MlflowClient(tracking_uri=home.mlflow_uri).get_metric_history(
        run.info.run_id, "score/reward_mean"
    )
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


def test_images_and_made_files_are_artifacts(home: Home):
    troubles: list[str] = []
    tracker = Tracker(home, troubles.append)
    tracker.start("glyphs-4", RunConfig(), {})
    for iteration in (0, 5):
        tracker.images(iteration, {"held-out/001-K7A-0": lambda: b64decode(png("K7A", 1, 20))})
    tracker.made_artifact("report.html", lambda file: file.write_text("<p>all of it</p>"))
    tracker.finish("finished")
    assert troubles == []
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    [run] = [run for run in runs_of(home) if run.data.tags["spotlight.run_id"] == "glyphs-4"]
    assert "report.html" in {file.path for file in client.list_artifacts(run.info.run_id)}
    pictures = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    steps = {path.partition("step")[2][1] for path in pictures}
    assert steps == {"0", "5"}, f"one of each iteration, for the slider: {pictures}"
    assert all("001-K7A-0" in path for path in pictures), pictures
    assert list(home.logs.iterdir()) == [], "nothing is left of the file that was made"


def test_a_file_that_cannot_be_made_is_named(home: Home):
    def refuse(file: Path) -> None:
        raise ServerError("no room")

    troubles: list[str] = []
    tracker = Tracker(home, troubles.append)
    tracker.start("glyphs-5", RunConfig(), {})
    tracker.made_artifact("report.html", refuse)
    tracker.finish("finished")
    assert troubles == ["MLflow lacks report.html: no room"]


def test_the_experiment_is_one_of_training_also_where_an_earlier_version_made_it(tmp_path: Path):
    """MLflow takes an experiment without the tag for one of prompts and traces (GenAI)."""
    home = Home(tmp_path).ensure()
    client = MlflowClient(tracking_uri=home.mlflow_uri)
    client.create_experiment(EXPERIMENT, home.artifacts.as_uri())
    tracker = Tracker(home)
    tracker.start("glyphs-1", RunConfig(), {})
    tracker.finish("finished")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_any_two_names_are_two_names_that_mlflow_takes():
    tags = [
        "颜色", "位置", "größe", "gro\u0308ße", "a:b", "a_b", "a b", "a\u00a0b", "a\nb", "😀", "😁",
        "?#%", "", ".", "a/", "a//b", "a/./b", "a/../b", "a/..", "../a", "a/.b", "a-u003a-b",
        "x" * 300 + "1", "x" * 300 + "2",
    ]  # fmt: skip
    figures = [f"evaluation_score.{tag}" for tag in tags]
    names = [mlflow_name(figure) for figure in figures]
    for name in names:
        _validate_metric(name, 0.5, 0, 0)
    assert len(set(names)) == len(names)


def test_a_missing_artifact_does_not_cost_the_figures(home: Home, tmp_path: Path):
    troubles: list[str] = []
    tracker = Tracker(home, troubles.append)
    tracker.start("glyphs-3", RunConfig(), {})
    tracker.artifact(tmp_path / "never written")
    tracker.metrics(1, {"reward_mean": 0.5})
    tracker.finish("finished")
    assert len(troubles) == 1
    [run] = [run for run in runs_of(home) if run.data.tags["spotlight.run_id"] == "glyphs-3"]
    assert run.data.metrics == {"score/reward_mean": 0.5}


def test_training_does_not_wait_for_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()
    monkeypatch.setattr(MlflowRun, "open", lambda run: released.wait(60) and None)
    logged: list[int] = []
    monkeypatch.setattr(MlflowRun, "log_metrics", lambda run, i, *rest: logged.append(i))
    monkeypatch.setattr(MlflowRun, "end", lambda run, status: None)
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
    monkeypatch.setattr(MlflowRun, "open", lambda run: released.wait(60) and None)
    monkeypatch.setattr(MlflowRun, "end", lambda run, status: None)
    troubles: list[str] = []
    tracker = Tracker(Home(tmp_path), troubles.append)
    tracker.start("glyphs-1", RunConfig(), {})
    for iteration in (1, 2):
        tracker.metrics(iteration, {"reward_mean": 0.5})
    tracker.finish("finished", wait_s=0.05)
    released.set()
    assert troubles == [
        "MLflow did not take everything within 0.05 s and lacks the figures of iterations 1 to 2, the run's "
        "end; all figures are in the run's record"
    ]


def test_without_a_start_it_does_nothing(tmp_path: Path):
    tracker = Tracker(Home(tmp_path))
    tracker.metrics(1, {"a": 1.0})
    tracker.finish("finished")
    assert list(tmp_path.iterdir()) == []
