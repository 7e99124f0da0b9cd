"""Checkpoints are copied off the machine, and a run goes on from there in a home that never saw it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

import flows.post_train
from flows.process.stopping import Stopped
from flows.start import fetch_where_unknown
from storage.config.loading import load_config
from storage.config.run_config import MIRROR_VARIABLE, RunConfig
from storage.errors import CheckpointError, ClusterLostError, ConfigurationError, RuntimeFailure, StorageError
from storage.home import Home
from storage.record import mirror as mirror_module
from storage.record.checkpoints import CheckpointStore
from storage.record.files import PART_FILE
from storage.record.mirror import CheckpointMirror, copy_to_mirror, fetch_from_mirror, refuse_if_continued
from storage.record.records import DeviceEvent
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows
from tasks.iteration import session as session_module
from tasks.iteration.session import Session, open_mirror
from tests.odd_names import ODD_NAMES
from tests.own_servers import running_s3
from tests.sample_run import iteration_record


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with running_s3("bucket") as environment:
        yield environment


@pytest.fixture(params=["folder", "s3"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "mirror")
        return
    for name, value in request.getfixturevalue("s3").items():
        monkeypatch.setenv(name, value)
    yield f"s3://bucket/{tmp_path.name}"
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Home:
    return Home(tmp_path / "elsewhere").ensure()


def save(home: Home, iteration: int, weights: bytes = b"weights", began_at: float | None = None) -> None:
    """Commit an iteration of the run with its checkpoint."""
    store = RunStore(home)
    if not store.folder("run").exists:
        store.create_run("run", RunConfig(), {}, os.getpid())
    at = 18.0 * iteration if began_at is None else began_at
    rows = iteration_rows(iteration_record("run", iteration, at, samples=16))
    CheckpointStore(home.run("run")).save(
        iteration, {"weights": weights, "empty": b""}, {"iteration": iteration}, rows
    )


def committed(home: Home) -> list[int]:
    """Iterations whose rows a home has."""
    with RunStore(home).reading("run") as connection:
        return [
            row[0] for row in connection.execute("FROM iterations SELECT iteration ORDER BY 1").fetchall()
        ]


def newest(home: Home) -> tuple[int, dict[str, bytes]]:
    loaded = CheckpointStore(home.run("run")).load_latest()
    assert loaded is not None
    return loaded.iteration, loaded.blobs


def fetched(home: Home) -> tuple[int, bytes, float]:
    """The newest checkpoint's iteration and weights, and the start of that iteration by its rows."""
    iteration, blobs = newest(home)
    with RunStore(home).reading("run") as connection:
        rows = connection.execute("SELECT started_at FROM iterations WHERE iteration = ?", [iteration])
        ((started_at,),) = rows.fetchall()
    return iteration, blobs["weights"], started_at


def test_the_newest_checkpoint_and_all_rows_come_back(address: str, home: Home, elsewhere: Home):
    for iteration in (1, 2, 3):
        save(home, iteration, b"weights %d" % iteration)
        copy_to_mirror(address, home, "run")
    copy_to_mirror(address, home, "run")
    RunStore(elsewhere).create_run("run", RunConfig(), {}, os.getpid())  # without a checkpoint
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    assert newest(elsewhere) == (3, {"weights": b"weights 3", "empty": b""})
    assert CheckpointStore(elsewhere.run("run")).pinned is None
    assert committed(elsewhere) == [1, 2, 3]
    assert RunStore(elsewhere).run("run") == RunStore(home).run("run")
    files, root = fsspec.core.url_to_fs(f"{address}/runs/run")
    kept = sorted(Path(path).parent.name for path in files.glob(f"{root}/*/checkpoint"))
    assert kept == ["iteration-000002", "iteration-000003"], "two stay, as at home"


def test_rows_that_the_run_has_no_more_go(address: str, home: Home, elsewhere: Home):
    store = RunStore(home)
    for iteration in (1, 2):
        save(home, iteration)
    record = iteration_record("run", 2, 36.0, samples=16)
    lost = DeviceEvent("spot-0", "spot", "lost", 40.0)
    store.commit_iteration(dataclasses.replace(record, device_events=[lost]))
    copy_to_mirror(address, home, "run")
    store.discard_after("run", 1)
    save(home, 2, b"again")
    copy_to_mirror(address, home, "run")
    store.add_event("run", "note", "between two checkpoints")
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    assert committed(elsewhere) == [1, 2]
    there = RunStore(elsewhere)
    assert there.folder("run").events() == store.folder("run").events()
    with there.reading("run") as connection:
        assert connection.execute("FROM device_events SELECT phase").fetchall() == [("discarded",)]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_of_any_name_serves_as_a_mirror_and_is_a_home(
    tmp_path: Path, home: Home, elsewhere: Home, name: str
):
    save(home, 1)
    copy_to_mirror(str(tmp_path / name), home, "run")
    mirror = Home(tmp_path / name)
    assert mirror.run_ids() == ["run"] and RunStore(mirror).run("run") == RunStore(home).run("run")
    assert committed(mirror) == [1] and newest(mirror)[0] == 1
    assert fetch_from_mirror(str(tmp_path / name), elsewhere, "run") == 1


class Uploads:
    """Names of the files that are copied to mirrors, as parent/name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        self.names: list[str] = []
        self.breaks_at = "nothing"
        files = fsspec.filesystem("file" if address.startswith("/") else "s3")
        put = files.put_file

        def watched(source: str, target: str) -> None:
            name = "/".join(source.split("/")[-2:])
            if source.endswith(self.breaks_at):
                raise FileNotFoundError("the connection broke")  # as of a bucket that is gone
            self.names.append(name)
            put(source, target)

        monkeypatch.setattr(files, "put_file", watched)

    def take(self) -> list[str]:
        taken, self.names = self.names, []
        return taken


def test_a_new_life_copies_no_rows_again_but_those_of_iterations_that_were_done_again(
    address: str, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        save(home, iteration)
    copy_to_mirror(address, home, "run")
    uploads = Uploads(monkeypatch, address)
    copy_to_mirror(address, home, "run")
    assert [name for name in uploads.take() if name.endswith(".parquet")] == []
    save(home, 2, began_at=37.0)  # other times, the same sizes
    copy_to_mirror(address, home, "run")
    again = {Path(name).parent.name for name in uploads.take() if name.endswith(".parquet")}
    assert again == {"iteration-000002"}
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    query = "FROM iterations SELECT started_at ORDER BY 1"
    found = []
    for each in (home, elsewhere):
        with RunStore(each).reading("run") as connection:
            found.append(connection.execute(query).fetchall())
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize("breaks_at", ["/samples.parquet", "checkpoint/weights"])
def test_rows_of_an_iteration_that_was_done_again_come_with_their_checkpoint(
    address: str, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch, breaks_at: str
):
    for iteration in (1, 2):
        save(home, iteration)
        copy_to_mirror(address, home, "run")
    save(home, 2, b"again", began_at=37.0)
    uploads = Uploads(monkeypatch, address)
    before = (2, b"weights", 36.0) if address.startswith("/") else (1, b"weights", 18.0)
    for at, expected in ((breaks_at, before), ("nothing", (2, b"again", 37.0))):
        uploads.breaks_at = at
        with nullcontext() if at == "nothing" else pytest.raises(OSError, match="the connection broke"):
            copy_to_mirror(address, home, "run")
        shutil.rmtree(elsewhere.run("run"), ignore_errors=True)
        assert fetch_from_mirror(address, elsewhere, "run") == expected[0]
        assert fetched(elsewhere) == expected
    assert uploads.take().count("checkpoint/weights") == 1


def test_the_only_checkpoint_goes_once_the_one_that_the_run_went_back_to_is_there(
    address: str, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        save(home, iteration, b"weights %d" % iteration)
    copy_to_mirror(address, home, "run")
    save(home, 2, b"again", began_at=37.0)
    uploads = Uploads(monkeypatch, address)
    uploads.breaks_at = "/iteration-000002/samples.parquet"
    before = (2, b"weights 2", 36.0) if address.startswith("/") else (1, b"weights 1", 18.0)
    for at, expected in ((uploads.breaks_at, before), ("nothing", (2, b"again", 37.0))):
        uploads.breaks_at = at
        with nullcontext() if at == "nothing" else pytest.raises(OSError, match="the connection broke"):
            copy_to_mirror(address, home, "run")
        shutil.rmtree(elsewhere.run("run"), ignore_errors=True)
        fetch_from_mirror(address, elsewhere, "run")
        assert fetched(elsewhere) == expected


def test_checkpoints_whose_rows_a_part_holds_stay_until_a_newer_one_is_there(
    address: str, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        save(home, iteration)
        copy_to_mirror(address, home, "run")
    for iteration in (3, 4):  # while the place did not answer
        save(home, iteration)
    RunStore(home).folder("run").compact(before=3, at_least=2)
    uploads = Uploads(monkeypatch, address)
    uploads.breaks_at = "checkpoint/weights"
    with pytest.raises(OSError, match="the connection broke"):
        copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    uploads.breaks_at = "nothing"
    copy_to_mirror(address, home, "run")
    shutil.rmtree(elsewhere.run("run"))
    assert fetch_from_mirror(address, elsewhere, "run") == 4
    assert committed(elsewhere) == [1, 2, 3, 4]
    assert uploads.take().count("checkpoint/weights") == 1


def test_a_checkpoint_whose_rows_a_part_holds_appears_by_a_rename_in_a_new_mirror(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        save(home, iteration)
    RunStore(home).folder("run").compact(at_least=2)

    def copy(source: str, target: str, **_: Any) -> None:
        pytest.fail(f"{target} is seen before it is complete")

    monkeypatch.setattr(shutil, "copytree", copy)  # by which `shutil.move` does without the parent folder
    copy_to_mirror(str(tmp_path / "mirror"), home, "run")
    assert newest(Home(tmp_path / "mirror"))[0] == 2


def test_an_iteration_that_one_life_does_again_is_copied_again(address: str, home: Home, elsewhere: Home):
    copied: dict[str, int] = {}
    for iteration in (1, 2):
        save(home, iteration)
        copy_to_mirror(address, home, "run", copied)
    RunStore(home).discard_after("run", 1)
    copy_to_mirror(address, home, "run", copied)
    assert copied.keys() == {"iteration-000001", "discarded-0001-iteration-000002"}
    save(home, 2, b"again", began_at=37.0)
    copy_to_mirror(address, home, "run", copied)
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    assert fetched(elsewhere) == (2, b"again", 37.0)


def test_a_folder_that_a_part_replaces_meanwhile_keeps_no_checkpoint_back(
    tmp_path: Path, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2, 3):
        save(home, iteration)
    original = mirror_module._copy_folder

    def copy(there: Any, source: Path, target: str) -> None:
        original(there, source, target)
        shutil.rmtree(home.run("run") / "iteration-000002", ignore_errors=True)

    monkeypatch.setattr(mirror_module, "_copy_folder", copy)
    address = str(tmp_path / "mirror")
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 3


def test_a_part_that_was_not_copied_to_its_end_counts_nowhere(
    address: str, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        save(home, iteration)
    copy_to_mirror(address, home, "run")
    RunStore(home).folder("run").compact(at_least=2)
    uploads = Uploads(monkeypatch, address)
    uploads.breaks_at = "/part.json"
    with pytest.raises(OSError, match="the connection broke"):
        copy_to_mirror(address, home, "run")
    rows = {f"part-000001/{path.name}" for path in home.run("run").glob("part-*/*.parquet")}
    assert rows <= {*uploads.take()}, "it is the last of its folder"
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    assert committed(elsewhere) == [1, 2]
    if address.startswith("/"):
        assert committed(Home(Path(address))) == [1, 2], "a mirror in a folder is a home at any moment"
    uploads.breaks_at = "nothing"
    copy_to_mirror(address, home, "run")
    shutil.rmtree(elsewhere.run("run"))
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    assert committed(elsewhere) == [1, 2]
    assert len(RunStore(elsewhere).folder("run").listing().parts) == 1
    files, root = fsspec.core.url_to_fs(f"{address}/runs/run")
    assert not files.glob(f"{root}/iteration-*/*.parquet") and "checkpoint/weights" not in uploads.take()
    copy_to_mirror(f"{address}-too", home, "run")  # which had none of the rows before
    shutil.rmtree(elsewhere.run("run"))
    assert fetch_from_mirror(f"{address}-too", elsewhere, "run") == 2


def test_a_file_that_changes_is_replaced_at_once_in_a_folder(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
):
    save(home, 1)
    address = str(tmp_path / "mirror")
    copy_to_mirror(address, home, "run")
    RunStore(home).set_status("run", "finished")

    def torn(source: str, target: str) -> None:
        Path(target).write_bytes(b"{")
        raise OSError("the disk is full")

    monkeypatch.setattr(fsspec.filesystem("file"), "put_file", torn)
    with pytest.raises(OSError, match="the disk is full"):
        copy_to_mirror(address, home, "run")
    assert RunStore(Home(tmp_path / "mirror")).run("run").status == "running"


@pytest.mark.parametrize(
    ("end", "status", "opens"),
    [
        (None, "finished", True),
        (Stopped(signal.SIGTERM, "stopped by SIGTERM"), "cancelled", True),
        (RuntimeFailure("no device is left"), "failed", True),
        (ClusterLostError("Ray's raylet ended"), "interrupted", False),
    ],
)
def test_a_run_that_ended_is_copied_as_it_stays(
    tmp_path: Path,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException | None,
    status: str,
    opens: bool,
):
    address = str(tmp_path / "mirror")
    nothing: Any = None
    runtime: Any = SimpleNamespace(cluster=SimpleNamespace(needed_processes=dict))
    readers: Any = SimpleNamespace(finish=lambda *_: None)

    def opened(home: Home, store: RunStore, run_id: str, config: RunConfig, mirror: Any) -> Session:
        if end is not None and not opens:
            raise end
        return Session(run_id, config, runtime, store, nothing, readers, ExitStack(), mirror)

    def trained(session: Session) -> dict[str, Any]:
        for iteration in (1, 2):
            save(home, iteration)
            assert session.mirror is not None
            session.mirror.copy_newest()
        if end is not None:
            raise end
        return {"score": 1.0}

    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    monkeypatch.setattr(session_module, "CANCELLED_FLUSH_S", 60.0)
    monkeypatch.setattr(flows.post_train, "open_session", opened)
    monkeypatch.setattr(flows.post_train, "_train", trained)
    config = load_config("smoke", [f"checkpoint.mirror={address}", "tracking.to=[]"], {})
    with nullcontext() if end is None else pytest.raises(type(end)):
        flows.post_train.train_run(config, "run")
    here, there = RunStore(home), RunStore(Home(tmp_path / "mirror"))
    assert there.run("run") == here.run("run") and there.run("run").status == status
    assert there.folder("run").events() == here.folder("run").events()
    assert [event["kind"] for event in here.folder("run").events()] == ["failed"] * (
        opens and status == "failed"
    )


def test_checkpoints_of_weights_that_were_given_up_go(address: str, home: Home, elsewhere: Home):
    for iteration in (1, 2, 3, 4):
        save(home, iteration, b"weights %d" % iteration)
        copy_to_mirror(address, home, "run")
    CheckpointStore(home.run("run")).drop_after(3)
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    for weights in (b"again", b"once more"):  # the run went back; then the same one is saved again
        shutil.rmtree(elsewhere.run("run"))
        save(home, 2, weights)
        copy_to_mirror(address, home, "run")
        assert fetch_from_mirror(address, elsewhere, "run") == 2
        assert newest(elsewhere)[1]["weights"] == weights


def test_a_late_copy_deletes_no_checkpoint_of_the_run_resumed_meanwhile(
    home: Home, elsewhere: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    address, copy, resumed = str(tmp_path / "mirror"), mirror_module._copy_folder, list[str]()

    def slow(there: Any, source: Path, name: str) -> None:
        copy(there, source, name)
        if not resumed:
            resumed.append(name)
            save(home, 4, b"newer")
            copy_to_mirror(address, home, "run")

    save(home, 1)
    monkeypatch.setattr(mirror_module, "_copy_folder", slow)
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 4


def test_rows_stay_until_the_part_that_replaces_them_is_there(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    address, copy, store = str(tmp_path / "mirror"), mirror_module._copy_folder, RunStore(home)
    store.create_run("r", RunConfig(), {}, os.getpid())
    for iteration in (1, 2, 3):
        store.commit_iteration(iteration_record("r", iteration, float(iteration)))

    def slow(there: Any, source: Path, name: str) -> None:
        copy(there, source, name)
        if name == "iteration-000003":
            store.folder("r").compact(at_least=2)

    monkeypatch.setattr(mirror_module, "_copy_folder", slow)
    for _ in range(2):
        copy_to_mirror(address, home, "r")
        with RunStore(Home(tmp_path / "mirror")).reading("r") as mirrored:
            assert mirrored.execute("SELECT count(*) FROM iterations").fetchall() == [(3,)]


def test_a_home_that_is_behind_the_mirror_deletes_nothing_there(address: str, home: Home, elsewhere: Home):
    """The run was taken over elsewhere: resumed where it came from, it would delete its newer checkpoints."""
    save(home, 3)
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    RunStore(elsewhere).resume_run("run", os.getpid())
    copy_to_mirror(address, elsewhere, "run")
    refuse_if_continued(address, home, "run")  # it has saved no more than this one
    save(elsewhere, 9, b"newer")
    copy_to_mirror(address, elsewhere, "run")
    troubles: list[str] = []
    mirror = CheckpointMirror(address, home, "run", troubles.append)
    mirror.close(60)
    assert len(troubles) == 1 and "has iteration 9 of run run, and this home ends at 3" in troubles[0]
    with pytest.raises(CheckpointError, match="went on elsewhere"):
        refuse_if_continued(address, home, "run")
    refuse_if_continued(address, elsewhere, "run")
    store, config = RunStore(home), RunConfig.model_validate({"checkpoint": {"mirror": address}})
    with pytest.raises(CheckpointError, match="went on elsewhere"):  # before anything starts
        open_mirror(home, store, "run", config)
    shutil.rmtree(home.run("run"))
    assert fetch_from_mirror(address, home, "run") == 9
    assert newest(home)[1]["weights"] == b"newer"


@pytest.mark.parametrize(
    ("place", "said"),
    [("gcs://bucket/runs", "its package is not installed"), ("nowhere://x", "mirror = 'nowhere://x'")],
)
def test_a_new_run_is_refused_where_its_mirror_cannot_be_opened(home: Home, place: str, said: str):
    config = RunConfig.model_validate({"checkpoint": {"mirror": place}})
    with pytest.raises(CheckpointError, match=said):
        open_mirror(home, RunStore(home), "new", config)


def test_torn_copies_do_not_stay(tmp_path: Path, home: Home):
    mirror = tmp_path / "mirror"
    there = Home(mirror).run("run")
    for iteration in (1, 2, 3, 4):
        save(home, iteration)
        copy_to_mirror(str(mirror), home, "run")
        if iteration == 2:
            (there / "iteration-000002" / "checkpoint" / "manifest.json").unlink()
            left = there / ".copying-iteration-000001-checkpoint"
            left.mkdir()
            (left / "state.json").write_text("cut short", encoding="utf-8")
    assert sorted(path.parent.name for path in there.glob("iter*/checkpoint")) == [
        "iteration-000003",
        "iteration-000004",
    ]
    assert not list(there.glob(".copying-*"))


def test_the_pinned_checkpoint_is_copied_and_stays_pinned(address: str, home: Home, elsewhere: Home):
    store = CheckpointStore(home.run("run"))
    for iteration in (1, 2, 3, 4, 5):
        save(home, iteration, b"weights %d" % iteration)
        if iteration == 2:
            store.pin(2)
        if iteration != 2:  # while the place did not answer
            copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 5
    there = CheckpointStore(elsewhere.run("run"))
    assert (there.pinned, there.iterations()) == (2, [2, 5])
    assert there.load(2).blobs["weights"] == b"weights 2"


@pytest.mark.parametrize("at", ["/iteration-000001/checkpoint/weights", "/samples.parquet", "/run.json"])
def test_a_fetch_that_was_cut_off_leaves_nothing_and_is_begun_again(
    tmp_path: Path, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch, at: str
):
    for iteration in (1, 2):
        save(home, iteration)
        CheckpointStore(home.run("run")).pin(1)
        copy_to_mirror(str(tmp_path / "mirror"), home, "run")
    files = type(fsspec.filesystem("file"))
    get_file = files.get_file

    def breaking(self: object, path: str, *rest: str) -> None:
        if path.endswith(at):
            raise OSError("the connection broke")
        get_file(self, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(files, "get_file", breaking)
        with pytest.raises(CheckpointError, match="the connection broke"):
            fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run")
    assert elsewhere.run_ids() == []
    save(home, 3)
    copy_to_mirror(str(tmp_path / "mirror"), home, "run")
    assert fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run") == 3
    there = CheckpointStore(elsewhere.run("run"))
    assert (there.pinned, there.iterations()) == (1, [1, 3])
    assert committed(elsewhere) == [1, 2, 3]
    assert fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run") is None


def test_what_is_torn_or_damaged_is_passed_over(tmp_path: Path, home: Home, elsewhere: Home):
    mirror = tmp_path / "mirror"
    for iteration in (1, 2):
        save(home, iteration)
        copy_to_mirror(str(mirror), home, "run")
    there = Home(mirror).run("run")
    shutil.copytree(there / "iteration-000002", there / "iteration-000003")
    (there / "iteration-000003" / "checkpoint" / "manifest.json").unlink()
    (there / "iteration-000002" / "checkpoint" / "weights").write_bytes(b"wrong")
    for part, text in (("part-000001", None), ("part-000002", '{"covers": ["iter')):
        (there / part).mkdir()
        shutil.copy(there / "iteration-000001" / "iterations.parquet", there / part)
        if text is not None:
            (there / part / PART_FILE).write_text(text)
    assert fetch_from_mirror(str(mirror), elsewhere, "run") == 1
    assert CheckpointStore(elsewhere.run("run")).iterations() == [1]
    assert not list(elsewhere.run("run").glob("part-*"))
    assert set(committed(elsewhere)) == {1, 2}
    (there / "iteration-000001" / "checkpoint" / "weights").write_bytes(b"wrong")
    shutil.rmtree(elsewhere.run("run"))
    with pytest.raises(CheckpointError, match="damaged"):
        fetch_from_mirror(str(mirror), elsewhere, "run")
    assert CheckpointStore(elsewhere.run("run")).iterations() == []


def test_a_home_that_knows_the_run_is_left_alone(address: str, home: Home):
    save(home, 2)
    copy_to_mirror(address, home, "run")
    save(home, 3)
    assert fetch_from_mirror(address, home, "run") is None
    assert newest(home)[0] == 3
    assert fetch_from_mirror(address, home, "another") is None


def test_resuming_reads_the_place_from_the_environment(
    address: str, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    save(home, 4)
    copy_to_mirror(address, home, "run")
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    fetch_where_unknown(elsewhere, "run")
    assert elsewhere.run_ids() == []
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    fetch_where_unknown(elsewhere, "run")
    assert newest(elsewhere)[0] == 4
    for name in ("", "../run", "x" * 5000):
        with pytest.raises(ConfigurationError, match="cannot name a folder"):
            fetch_where_unknown(elsewhere, name)


def test_a_place_that_does_not_take_it_is_reported_once_and_the_run_goes_on(
    tmp_path: Path, home: Home, caplog: pytest.LogCaptureFixture
):
    def report(message: str) -> None:
        troubles.append(message)
        raise StorageError("disk full")

    (tmp_path / "file").write_text("no folder")
    troubles: list[str] = []
    mirror = CheckpointMirror(str(tmp_path / "file"), home, "run", report)
    save(home, 1)
    mirror.copy_newest()
    while not troubles:
        time.sleep(0.01)
    mirror.close(60)
    assert len(troubles) == 1 and "are not copied" in troubles[0]
    assert "could not be recorded: disk full" in caplog.text


def test_each_wish_is_one_copy(home: Home, monkeypatch: pytest.MonkeyPatch):
    copies = Queue[None]()
    monkeypatch.setattr(mirror_module, "copy_to_mirror", lambda *_: copies.put(None))
    mirror = CheckpointMirror("/nowhere", home, "run", pytest.fail)
    for _ in range(2):
        mirror.copy_newest()
        copies.get(timeout=30)
    mirror.close(60)
    assert copies.qsize() == 1


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_place_that_does_not_answer_is_not_waited_for(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_interrupted: bool
):
    def interrupted(wait_s: float) -> None:
        raise KeyboardInterrupt

    answers, troubles = threading.Event(), list[str]()
    monkeypatch.setattr(mirror_module, "copy_to_mirror", lambda *_: answers.wait(60))
    mirror = CheckpointMirror(str(tmp_path), home, "run", troubles.append)
    if is_interrupted:
        monkeypatch.setattr(mirror._thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt) if is_interrupted else nullcontext():
        mirror.close(60 if is_interrupted else 0.1)
    answers.set()
    waited = 0.0 if is_interrupted else 0.1
    assert troubles == [f"the last checkpoint was not copied to {tmp_path} in {waited} s"]


def test_the_place_is_no_part_of_what_a_run_computes():
    there = RunConfig.model_validate({"checkpoint": {"mirror": "/mnt/backup/"}})
    assert there.checkpoint.mirror == "/mnt/backup"
    assert there.computes_like(RunConfig())
    assert not there.computes_like(RunConfig.model_validate({"checkpoint": {"every": 2}}))


def test_a_place_names_no_login_as_settings_are_stored_with_the_run():
    for place in ("s3://bucket/me@lab/runs", "/mnt/me@lab/runs"):
        assert RunConfig.model_validate({"checkpoint": {"mirror": place}}).checkpoint.mirror == place
    for place in ("s3://key:secret@host/runs", "s3://key@host"):
        with pytest.raises(ValueError, match=r"checkpoint\.mirror holds a login"):
            RunConfig.model_validate({"checkpoint": {"mirror": place}})
