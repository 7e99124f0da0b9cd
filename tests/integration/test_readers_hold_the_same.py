"""MLflow, W&B and TensorBoard hold the figures of the record, each once, after an outage and a resume too."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

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


def tensorboard_files(home: Home, run_id: str) -> Any:
    """TensorBoard's own view of a run: all steps, what was voided left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(home.tensorboard / run_id), size_guidance={"scalars": 0, "images": 0})
    return found.Reload()


def tensorboard_points(home: Home, run_id: str) -> Points:
    """The scalars of a run."""
    found = tensorboard_files(home, run_id)
    tags = found.Tags()["scalars"]
    return {tag: sorted((one.step, one.value) for one in found.Scalars(tag)) for tag in tags}


def wandb_records(folder: Path, run_id: str) -> list[Any]:
    """The records of a run's offline folders, in the order in which `wandb sync` takes them."""
    from wandb.proto import wandb_internal_pb2

    protos: Any = wandb_internal_pb2  # type checkers do not know the names of generated code
    found = []
    for file in sorted(folder.glob(f"wandb/offline-run-*-{run_id}/run-*.wandb")):
        for content in _log_entries(file.read_bytes()):
            record = protos.Record()
            record.ParseFromString(content)
            found.append(record)
    return found


def wandb_points(folder: Path, run_id: str) -> Points:
    """The numbers that were logged, by W&B's axis of ours."""
    found: Points = defaultdict(list)
    for record in wandb_records(folder, run_id):
        if record.WhichOneof("record_type") != "history":
            continue
        row = {
            ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
        }
        step = row.pop("iteration")
        for name, value in row.items():
            if not name.startswith(("_", "held-out/")):
                found[name].append((step, float(value)))
    return {name: sorted(points) for name, points in found.items()}


_BLOCK, _HEADER = 32_768, 7


def _log_entries(content: bytes) -> list[bytes]:
    """The entries of a file in LevelDB's format of logs, after W&B's own header of 7 bytes."""
    found, parts, place = [], b"", 7
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        kind = content[place + 6]
        parts += content[place + _HEADER : place + _HEADER + length]
        if kind in (1, 4):  # whole, or the last part
            found.append(parts)
            parts = b""
        place += _HEADER + length
    return found


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
