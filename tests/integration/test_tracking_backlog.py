"""MLflow gets what it lacks of earlier runs of a home, once, while a later run is at work."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.records import RunStatus
from storage.record.run_folder import NOTES_FILE, RUN_FILE
from storage.record.run_notes import NoteStore
from storage.record.run_store import RunStore
from storage.tracking.mlflow_run import EXPERIMENT, RUN_TAG, MlflowRun
from storage.tracking.tracker import Tracker
from tests.running_up import wait_until
from tests.sample_run import ITERATION_S, evaluation_record, iteration_record

BEGAN_AT = 1_700_000_000.0
REWARD, SCORE = "score/reward_mean", "score/evaluation_score"


@pytest.fixture(scope="module")
def gone() -> int:
    """The pid of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A home that the tests share: MLflow takes seconds to make its tables."""
    return RunStore(Home(tmp_path_factory.mktemp("home")).ensure())


def record(store: RunStore, run_id: str, pid: int, iterations: int, status: RunStatus = "cancelled") -> None:
    """A run in the database that MLflow has nothing of, with an evaluation before its iterations."""
    facts = {"commit": "cf706f1", "preset": "glyphs"}
    store.create_run(run_id, RunConfig(name="of-a-name"), facts, pid)
    store.commit_evaluation(evaluation_record(run_id, 0, BEGAN_AT, 4, 0))
    for iteration in range(1, iterations + 1):
        store.commit_iteration(iteration_record(run_id, iteration, BEGAN_AT + iteration * ITERATION_S))
    if status != "running":
        store.set_status(run_id, status)


def later_run(store: RunStore, run_id: str) -> list[str]:
    """A run that comes to its first iteration and ends; its events of trouble with MLflow."""
    troubles: list[str] = []
    tracker = Tracker(store.home, troubles.append)
    tracker.start(run_id, RunConfig(), {})
    tracker.catch_up()
    tracker.metrics(1, {"reward_mean": 0.5})
    tracker.finish("finished")
    return troubles


def found(store: RunStore, run_id: str) -> Run | None:
    """The run in MLflow."""
    client = MlflowClient(tracking_uri=store.home.mlflow_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{run_id}'")
    return runs[0] if runs else None


def steps(store: RunStore, run_id: str, figure: str = REWARD) -> list[int]:
    """The iterations of each point that MLflow has of a figure, in order of time."""
    run = found(store, run_id)
    assert run is not None
    client = MlflowClient(tracking_uri=store.home.mlflow_uri)
    return [one.step for one in client.get_metric_history(run.info.run_id, figure)]


def test_a_run_cancelled_early_is_sent_once_by_a_later_one(store: RunStore, gone: int):
    record(store, "early", gone, 2)
    assert later_run(store, "later") == []
    run, row = found(store, "early"), store.run("early")
    assert run is not None and row.ended_at is not None
    assert run.info.status == "KILLED"
    assert (run.info.start_time, run.info.end_time) == (int(row.created_at * 1000), int(row.ended_at * 1000))
    assert run.data.params["sampling.noise_level"] == "0.7"
    assert run.data.tags.items() >= {"spotlight.preset": "glyphs", "spotlight.commit": "cf706f1"}.items()
    assert (steps(store, "early"), steps(store, "early", SCORE)) == ([1, 2], [0])
    evaluation, first = evaluation_record("early", 0, BEGAN_AT, 4, 0), iteration_record("early", 1, BEGAN_AT)
    costs = [sum(interval.usd for interval in one.intervals) for one in (evaluation, first)]
    client = MlflowClient(tracking_uri=store.home.mlflow_uri)
    totals = client.get_metric_history(run.info.run_id, "cost/total_usd")
    expected = [costs[0], costs[0] + costs[1], costs[0] + 2 * costs[1]]
    assert [one.value for one in totals] == pytest.approx(expected)
    assert [one.timestamp for one in totals] == [
        int((BEGAN_AT + seconds) * 1000) for seconds in (9, 2 * ITERATION_S, 3 * ITERATION_S)
    ]
    # Also where nothing says any more that it was sent.
    store.folder("early").change(NOTES_FILE, lambda notes: notes | {"links": {}})
    assert later_run(store, "latest") == []
    assert (steps(store, "early"), steps(store, "early", SCORE)) == ([1, 2], [0])


def test_a_run_that_mlflow_has_is_not_asked_for_again(
    store: RunStore, gone: int, monkeypatch: pytest.MonkeyPatch
):
    record(store, "complete", gone, 1)
    assert later_run(store, "after-complete") == []
    opened: list[str] = []
    open_run = MlflowRun.open
    monkeypatch.setattr(MlflowRun, "open", lambda run: opened.append(run.run_id) or open_run(run))
    assert later_run(store, "after-that") == []
    assert set(opened) == {"after-that"}


def test_what_a_resumed_run_and_one_cut_off_lack_is_added(store: RunStore, gone: int):
    for run_id in ("resumed", "cut-off"):
        record(store, run_id, gone, 3)
        tracker = Tracker(store.home)
        tracker.start(run_id, RunConfig(), {})
        tracker.metrics(2, {"reward_mean": 0.5})
        tracker.finish("cancelled")
    assert later_run(store, "cut-off-found") == []
    assert sorted(steps(store, "cut-off")) == [1, 2, 3]
    store.resume_run("resumed", gone)
    tracker = Tracker(store.home)
    tracker.start("resumed", RunConfig(), {})
    tracker.catch_up()
    store.commit_iteration(iteration_record("resumed", 4, 4e9))  # sent by the run itself
    tracker.metrics(4, {"reward_mean": 0.5})
    tracker.finish("finished")
    assert sorted(steps(store, "resumed")) == [1, 2, 3, 4]
    assert sorted(steps(store, "resumed", SCORE)) == [0]


def test_runs_of_living_processes_are_left_alone(store: RunStore):
    record(store, "at-work", os.getpid(), 1, "running")
    record(store, "sending", os.getpid(), 1, "finished")
    assert later_run(store, "beside") == []
    assert found(store, "at-work") is None
    assert found(store, "sending") is None, "its process may still send its last figures"


def test_simulated_runs_are_not_sent(store: RunStore, gone: int):
    record(store, "not-done", gone, 1, "simulated")
    assert later_run(store, "after-not-done") == []
    assert found(store, "not-done") is None


def test_of_two_processes_one_sends(store: RunStore, gone: int):
    record(store, "wanted", gone, 1)
    with (store.home.path / "mlflow.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert later_run(store, "second") == []
        assert found(store, "wanted") is None
    assert later_run(store, "third") == []
    assert steps(store, "wanted") == [1]


def test_a_run_is_sent_while_a_later_one_goes_on_and_trouble_with_it_stops_nothing(
    store: RunStore, gone: int, monkeypatch: pytest.MonkeyPatch
):
    for run_id in ("sound", "refused"):
        record(store, run_id, gone, 1)
    store.folder("sound").change(RUN_FILE, lambda run: run | {"config": [1]})
    logged = MlflowRun.log_metrics

    def refuse(run: MlflowRun, *rest: Any) -> None:
        if run.run_id == "refused":
            raise MlflowException("no room")
        logged(run, *rest)

    monkeypatch.setattr(MlflowRun, "log_metrics", refuse)
    troubles: list[str] = []
    tracker = Tracker(store.home, troubles.append)
    tracker.start("goes-on", RunConfig(), {})
    tracker.catch_up()
    tracker.metrics(1, {"reward_mean": 0.5})
    wait_until("the earlier run is sent", lambda: "mlflow_complete" in links_of(store, "sound"))
    tracker.metrics(2, {"reward_mean": 0.6})
    tracker.finish("finished")
    assert steps(store, "goes-on") == [1, 2]
    assert steps(store, "sound") == [1]
    assert len(troubles) == 1 and "no room" in troubles[0]
    assert "mlflow_complete" not in links_of(store, "refused"), "the next run tries again"


def links_of(store: RunStore, run_id: str) -> dict[str, str]:
    return NoteStore(store.home).links(run_id)
