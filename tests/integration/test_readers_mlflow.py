"""MLflow holds what the record does, also after a resume or a lost copy; no trouble with it stops a run."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.utils.validation import _validate_metric

import storage.readers.following
from storage.config.run_config import RunConfig
from storage.errors import StorageError
from storage.home import Home
from storage.readers.figures import figure_name
from storage.readers.following import REPORT, position_file
from storage.readers.mlflow_reader import MlflowReader, flat_settings
from storage.record.files import locked
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.read_runs import (
    BEGAN_AT,
    Followed,
    begin,
    commit,
    followed,
    gone_process,
    mlflow_points,
    mlflow_run,
    recorded_points,
    steps,
)
from tests.running_up import wait_until
from tests.sample_run import ITERATION_S, evaluation_record


@pytest.fixture(scope="module")
def gone() -> int:
    return gone_process()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A home that the tests share: MLflow takes seconds to make its tables."""
    return RunStore(Home(tmp_path_factory.mktemp("home")).ensure())


def points(store: RunStore, run_id: str) -> dict[str, list[tuple[int, float]]]:
    return mlflow_points(store.home.mlflow_uri, run_id)


def refuses(monkeypatch: pytest.MonkeyPatch, method: str, refuse: Any) -> None:
    """Let a method of the reader ask `refuse` first."""
    own = getattr(MlflowReader, method)

    def first(reader: MlflowReader, *values: Any) -> Any:
        refuse(reader, *values)
        return own(reader, *values)

    monkeypatch.setattr(MlflowReader, method, first)


def test_all_that_is_recorded_is_there_once_with_its_times(store: RunStore, gone: int):
    config = begin(store, "whole", gone)
    commit(store, "whole", 1, 2)
    store.commit_evaluation(evaluation_record("whole", 2, BEGAN_AT + 3 * ITERATION_S, 4, 2))
    checkpoint = store.home.run("whole") / "iteration-000002" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(b"weights")
    (store.home.run("whole") / REPORT).write_text("<p>all of it</p>")
    assert followed(store, "whole", config) == []
    run, row = mlflow_run(store.home.mlflow_uri, "whole"), store.run("whole")
    assert run is not None and row.ended_at is not None
    assert (run.info.status, run.info.start_time) == ("FINISHED", int(row.created_at * 1000))
    assert run.data.params["sampling.noise_level"] == "0.7"
    expected = {
        "spotlight.run_id": "whole", "spotlight.preset": "glyphs", "spotlight.commit": "cf706f1",
        "mlflow.source.git.commit": "cf706f1", "spotlight.reward": "ocr",
    }  # fmt: skip
    assert run.data.tags.items() >= expected.items()
    assert points(store, "whole") == recorded_points(store.home, "whole")
    client = MlflowClient(tracking_uri=store.home.mlflow_uri)
    totals = client.get_metric_history(run.info.run_id, "cost/total_usd")
    assert [one.value for one in totals] == sorted(one.value for one in totals) and totals[0].value > 0
    ends = [9.0, 2 * ITERATION_S, 3 * ITERATION_S, 3 * ITERATION_S + 9]
    assert [one.timestamp for one in totals] == [int((BEGAN_AT + end) * 1000) for end in ends]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"images", "report.html", "weights.safetensors"}
    pictures = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    assert {path.partition("step")[2][1] for path in pictures} == {"0", "2"}, "for the slider"
    assert any("001-a-sign-that-says" in path for path in pictures), pictures
    # Also where nothing says any more that it was sent.
    position_file(store.home.run("whole"), "mlflow").unlink()
    assert followed(store, "whole", config) == []
    assert points(store, "whole") == recorded_points(store.home, "whole")
    assert [file.path for file in client.list_artifacts(run.info.run_id, "images")] == pictures


def test_odd_figures_and_settings_are_taken(store: RunStore, gone: int):
    config = RunConfig.model_validate({"model": {"negative_prompt": "x" * 7000}})
    store.create_run("odd", config, {}, gone)
    commit(store, "odd", 1, metrics={"odd name@%": 1.0, "missing": math.nan, "much": math.inf})
    assert followed(store, "odd", config) == []
    found = points(store, "odd")
    assert found["exploration/odd name-u0040--u0025-"] == [(1, 1.0)]
    assert math.isnan(found["exploration/missing"][0][1])
    assert found["exploration/much"][0][1] > 1e300
    run = mlflow_run(store.home.mlflow_uri, "odd")
    assert run is not None and len(run.data.params["model.negative_prompt"]) == 6000


def test_settings_that_an_outage_cut_off_come_with_the_figures(
    store: RunStore, gone: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(storage.readers.following, "RETRY_S", 0.01)
    send, sent = MlflowClient.log_batch, list[Any]()

    def log_batch(client: MlflowClient, run_id: str, **batch: Any) -> None:
        if "params" in batch:
            sent.append(batch["params"])
            if len(sent) == 2:
                raise ConnectionError("away")
        send(client, run_id, **batch)

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    many = {f"word-{number}": number for number in range(60)}
    config = RunConfig.model_validate({"reward": {"scorer": "glyphs", "options": many}})
    store.create_run("cut-off", config, {}, gone)
    commit(store, "cut-off", 1)
    own = Followed(store, "cut-off", config)
    own.readers.wake()
    wait_until("it answers again", lambda: len(own.troubles) == 2)
    own.readers.finish("finished")
    run = mlflow_run(store.home.mlflow_uri, "cut-off")
    assert run is not None and len(sent) > 2
    assert run.data.params == flat_settings(store.run("cut-off").settings)


def test_a_resumed_run_goes_on_in_the_same_copy_whose_newest_points_are_the_record_s(
    store: RunStore, gone: int
):
    config = begin(store, "returned", gone)
    commit(store, "returned", 1, 2, 3)
    assert followed(store, "returned", config, "interrupted") == []
    before = mlflow_run(store.home.mlflow_uri, "returned")
    assert before is not None and before.info.status == "KILLED"
    store.resume_run("returned", gone)
    store.discard_after("returned", 1)
    commit(store, "returned", 2, 3, 4, life=1, metrics={"reward_mean": 0.125})
    assert followed(store, "returned", config) == []
    run = mlflow_run(store.home.mlflow_uri, "returned")
    assert run is not None and run.info.run_id == before.info.run_id
    assert run.info.status == "FINISHED"
    history = MlflowClient(tracking_uri=store.home.mlflow_uri).get_metric_history(
        run.info.run_id, "score/reward_mean"
    )
    newest = {one.step: one.value for one in sorted(history, key=lambda one: one.timestamp)}
    assert sorted(newest.items()) == recorded_points(store.home, "returned")["score/reward_mean"]
    assert len(history) == 6, "MLflow forgets no point"


def test_a_copy_that_was_lost_is_made_again_whole(store: RunStore, gone: int):
    config = begin(store, "lost", gone)
    commit(store, "lost", 1, 2)
    own = Followed(store, "lost", config)
    own.readers.wake()
    wait_until("two iterations are there", lambda: steps(points(store, "lost")) == [1, 2])
    run = mlflow_run(store.home.mlflow_uri, "lost")
    assert run is not None
    MlflowClient(tracking_uri=store.home.mlflow_uri).delete_run(run.info.run_id)
    commit(store, "lost", 3)
    own.readers.finish("finished")
    assert own.troubles == []
    assert points(store, "lost") == recorded_points(store.home, "lost")


def test_a_broken_store_is_told_once_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nor does a disk that takes no word of it."""
    monkeypatch.setattr(storage.readers.following, "RETRY_S", 0.01)
    store = RunStore(Home(tmp_path).ensure())
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    config = begin(store, "r", os.getpid())
    own = Followed(store, "r", config)
    note = RunStore.add_event

    def refuse(store: RunStore, run_id: str, kind: str, message: str) -> None:
        note(store, run_id, kind, message)
        raise StorageError("locked")

    monkeypatch.setattr(RunStore, "add_event", refuse)
    for iteration in (1, 2):
        commit(store, "r", iteration)
        own.readers.wake()
    wait_until("the failure is told", lambda: bool(own.troubles))
    own.readers.finish("finished")
    assert len(own.troubles) == 2
    assert own.troubles[0].startswith("MLflow failed (")
    assert "the run continues" in own.troubles[0] and "\n" not in own.troubles[0]
    assert own.troubles[1] == (
        "MLflow was away and lacks the figures of iterations 1 to 2, the run's end; all figures are in the "
        "run's record, and the next run of the home sends them"
    )


def test_what_mlflow_refuses_does_not_cost_the_rest(
    store: RunStore, gone: int, monkeypatch: pytest.MonkeyPatch
):
    def refuse(reader: MlflowReader, number: int, *rest: Any) -> None:
        if number == 2:
            raise MlflowException("no such figure", INVALID_PARAMETER_VALUE)

    refuses(monkeypatch, "iteration", refuse)
    config = begin(store, "refused", gone)
    commit(store, "refused", 1, 2, 3)
    assert followed(store, "refused", config) == [
        "MLflow refused iteration 2 (MlflowException: no such figure); the run continues without it"
    ]
    assert steps(points(store, "refused")) == [1, 3]


def test_any_two_names_are_two_names_that_mlflow_takes():
    tags = [
        "颜色", "位置", "größe", "gro\u0308ße", "a:b", "a_b", "a b", "a\u00a0b", "a\nb", "😀", "😁",
        "?#%", "", ".", "a/", "a//b", "a/./b", "a/../b", "a/..", "../a", "a/.b", "a-u003a-b",
        "x" * 300 + "1", "x" * 300 + "2",
    ]  # fmt: skip
    names = [figure_name(f"evaluation_score.{tag}") for tag in tags]
    for name in names:
        _validate_metric(name, 0.5, 0, 0)
    assert len(set(names)) == len(names)


def test_runs_that_go_on_or_were_not_done_are_left_alone(store: RunStore, gone: int):
    begin(store, "at-work", os.getpid())
    begin(store, "not-done", gone)
    store.set_status("not-done", "simulated")
    begin(store, "elsewhere", gone, uri="http://127.0.0.1:9")
    store.set_status("elsewhere", "failed")
    begin(store, "to-none", gone, to=[])
    store.set_status("to-none", "failed")
    begin(store, "other-machine", gone)
    store.set_status("other-machine", "failed")
    store.folder("other-machine").change(RUN_FILE, lambda run: run | {"host": "another"})
    assert followed(store, "beside", begin(store, "beside", gone)) == []
    for run_id in ("at-work", "not-done", "elsewhere", "to-none", "other-machine"):
        assert mlflow_run(store.home.mlflow_uri, run_id) is None, run_id


def test_of_two_processes_one_sends(store: RunStore, gone: int):
    begin(store, "wanted", gone)
    commit(store, "wanted", 1)
    store.set_status("wanted", "failed")
    with locked(position_file(store.home.run("wanted"), "mlflow").with_suffix(".lock")):
        assert followed(store, "second", begin(store, "second", gone)) == []
        assert mlflow_run(store.home.mlflow_uri, "wanted") is None
    assert followed(store, "third", begin(store, "third", gone)) == []
    assert steps(points(store, "wanted")) == [1]


def test_an_earlier_run_is_sent_while_a_later_one_goes_on_and_trouble_with_it_stops_nothing(
    store: RunStore, gone: int, monkeypatch: pytest.MonkeyPatch
):
    for run_id in ("sound", "no-room"):
        begin(store, run_id, gone)
        commit(store, run_id, 1)
        store.set_status(run_id, "failed")
    store.folder("sound").change(RUN_FILE, lambda run: run | {"config": [1]})

    def refuse(reader: MlflowReader, run: Any, last: int) -> None:
        if run.run_id == "no-room":
            raise MlflowException("no room")

    with monkeypatch.context() as patch:
        refuses(patch, "open", refuse)
        config = begin(store, "goes-on", gone)
        commit(store, "goes-on", 1)
        own = Followed(store, "goes-on", config)
        own.readers.wake()
        wait_until("the earlier run is sent", lambda: steps(points(store, "sound")) == [1])
        commit(store, "goes-on", 2)
        own.readers.finish("finished")
    assert steps(points(store, "goes-on")) == [1, 2]
    assert len(own.troubles) == 1 and "no room" in own.troubles[0]
    assert followed(store, "tries-again", begin(store, "tries-again", gone)) == []
    assert steps(points(store, "no-room")) == [1]
