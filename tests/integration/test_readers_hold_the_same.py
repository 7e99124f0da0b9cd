"""MLflow, W&B and TensorBoard hold the figures of the record, each once, after an outage and a resume too."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import storage.readers.following
import storage.readers.tensorboard_reader
from storage.config.tracking import TrackingConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.readers.mlflow_reader import MlflowReader
from storage.readers.registry import check_readers
from storage.readers.tensorboard_reader import TensorboardReader
from storage.readers.wandb_reader import WandbReader
from storage.record.run_store import RunStore
from tests.event_files import tensorboard_files, tensorboard_points, wandb_points, wandb_records
from tests.read_runs import (
    BEGAN_AT,
    Followed,
    Points,
    begin,
    commit,
    followed,
    mlflow_points,
    recorded_points,
)
from tests.running_up import wait_until
from tests.sample_run import evaluation_record

ALL = ["mlflow", "wandb", "tensorboard"]

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("WANDB_MODE", "offline")
    return RunStore(Home(tmp_path).ensure())


def rounded(points: Points) -> Points:
    """As TensorBoard keeps numbers, in 32 bits."""
    return {
        name: sorted((step, float(np.float32(value))) for step, value in own) for name, own in points.items()
    }


def test_all_three_have_each_figure_once(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storage.readers.following, "RETRY_S", 0.2)
    config = begin(store, "r", os.getpid(), to=ALL)
    commit(store, "r", 1, metrics={"missing": math.nan, "odd:name": 2.0})
    own = Followed(store, "r", config)
    own.readers.wake()
    wait_until("all have begun", lambda: len(list((store.home.run("r") / "readers").glob("*.json"))) == 3)
    with monkeypatch.context() as away:
        for reader in (MlflowReader, WandbReader, TensorboardReader):

            def refuse(self: object, number: int, *rest: object) -> None:
                raise ConnectionError("away")

            away.setattr(reader, "iteration", refuse)
        commit(store, "r", 2, 3)
        own.readers.wake()
        wait_until("each outage is told", lambda: sum("failed" in text for text in own.troubles) == 3)
    wait_until("all answer again", lambda: sum("answers again" in text for text in own.troubles) == 3)
    store.set_status("r", "interrupted")
    own.readers.finish("interrupted")
    store.resume_run("r", os.getpid())
    commit(store, "r", 4, life=1)
    store.commit_evaluation(evaluation_record("r", 4, BEGAN_AT + 20_000, 4, 2))
    assert followed(store, "r", config) == []
    recorded = recorded_points(store.home, "r")
    assert set(recorded) >= {"score/reward_mean", "score/evaluation_score", "exploration/odd-u003a-name"}
    [(_, missing)] = recorded.pop("exploration/missing")
    assert math.isnan(missing)
    for found in (mlflow_points(store.home.mlflow_uri, "r"), wandb_points(store.home.path, "r")):
        assert math.isnan(found.pop("exploration/missing")[0][1])
        assert found == recorded
    found = tensorboard_points(store.home, "r")
    assert math.isnan(found.pop("exploration/missing")[0][1])
    assert found == rounded(recorded)


def test_pictures_and_identity_are_there(store: RunStore):
    config = begin(store, "r", os.getpid(), to=["wandb", "tensorboard"])
    commit(store, "r", 1)
    assert followed(store, "r", config) == []
    files = tensorboard_files(store.home, "r")
    assert len(files.Tags()["images"]) == 2
    [image] = files.Images(files.Tags()["images"][0])
    assert (image.step, image.wall_time) == (0, BEGAN_AT + 9)
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert [one.wall_time for one in files.Scalars("score/reward_mean")] == [BEGAN_AT + 36]
    records = wandb_records(store.home.path, "r")
    [run] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.project, run.display_name) == ("r", "spotlight", "r")
    [(axis, every)] = [
        (records[0].metric, records[1].metric)
        for records in [[one for one in records if one.WhichOneof("record_type") == "metric"]]
    ]
    assert (axis.name, every.glob_name, every.step_metric) == ("iteration", "*", "iteration")
    assert len(list(store.home.path.glob("wandb/offline-run-*/files/media/images/held-out/*.png"))) == 2


def test_after_a_return_to_a_checkpoint_the_figures_are_those_of_the_record(store: RunStore):
    config = begin(store, "r", os.getpid(), to=["wandb", "tensorboard"])
    commit(store, "r", 1, 2, 3)
    assert followed(store, "r", config, "interrupted") == []
    store.resume_run("r", os.getpid())
    store.discard_after("r", 1)
    commit(store, "r", 2, life=1, metrics={"reward_mean": 0.125})
    assert followed(store, "r", config, "interrupted") == []
    recorded = recorded_points(store.home, "r")
    assert tensorboard_points(store.home, "r") == rounded(recorded), "iteration 3 is voided, too"
    logged = wandb_points(store.home.path, "r")["score/reward_mean"]
    assert [step for step, _ in logged] == [1, 2, 2, 3]
    assert (2, 0.125) in logged


def test_a_run_that_w_and_b_lacks_is_sent_whole(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    """The run was resumed with another WANDB_PROJECT."""
    config = begin(store, "r", os.getpid(), to=["wandb"])
    commit(store, "r", 1, 2)
    assert followed(store, "r", config, "interrupted") == []
    shutil.rmtree(store.home.path / "wandb")
    monkeypatch.setattr("wandb.Run.offline", False)
    store.resume_run("r", os.getpid())
    commit(store, "r", 3, life=1)
    assert followed(store, "r", config) == []
    assert wandb_points(store.home.path, "r") == recorded_points(store.home, "r")


def test_files_are_read_in_the_order_in_which_they_were_begun(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    """Twelve lives in one second, after the clock was set back: `.9` would be read after `.10`."""
    config = begin(store, "r", os.getpid(), to=["tensorboard"])
    moments = iter([2_000_000_000.0, *[1_000_000_000.0] * 50])
    monkeypatch.setattr(storage.readers.tensorboard_reader, "now", lambda: next(moments))
    for iteration in range(1, 13):
        commit(store, "r", iteration, life=iteration - 1)
        assert followed(store, "r", config, "interrupted") == []
        store.resume_run("r", os.getpid())
    files = [file.name for file in (store.home.tensorboard / "r").iterdir()]
    assert len(set(files)) == 12
    assert tensorboard_points(store.home, "r") == rounded(recorded_points(store.home, "r"))


def test_event_files_that_were_deleted_and_a_killed_write_leave_each_figure_once(store: RunStore):
    config = begin(store, "r", os.getpid(), to=["tensorboard"])
    commit(store, "r", 1, 2)
    assert followed(store, "r", config, "interrupted") == []
    shutil.rmtree(store.home.tensorboard)
    assert followed(store, "r", config, "failed") == []
    assert tensorboard_points(store.home, "r") == rounded(recorded_points(store.home, "r"))
    # Written, but not noted: the last iteration is voided and written again.
    file = store.home.run("r") / "readers" / "tensorboard.json"
    file.write_text(file.read_text().replace('"moment": 4', '"moment": 2'))
    assert followed(store, "r", config) == []
    assert tensorboard_points(store.home, "r") == rounded(recorded_points(store.home, "r"))


@pytest.mark.parametrize("package", ["wandb", "tensorboard"])
def test_a_package_that_is_missing_is_refused_with_the_command_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("storage.readers.registry.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=rf"pip install -c constraints.txt -e '\.\[{package}\]'"):
        check_readers(TrackingConfig(to=(package,)))
