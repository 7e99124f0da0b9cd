"""Checkpoints are copied off the machine, and a run goes on from there in a home that never saw it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from pydantic import ValidationError

from flows.recovery import fetch_where_unknown
from storage import checkpoint_mirror
from storage.checkpoint_mirror import (
    CheckpointMirror,
    copy_to_mirror,
    fetch_from_mirror,
    refuse_if_continued,
)
from storage.checkpoints import CheckpointStore
from storage.config.run_config import MIRROR_VARIABLE, RunConfig
from storage.database.run_store import RunStore
from storage.errors import CheckpointError, ConfigurationError
from storage.home import Home
from tasks.iteration.session import open_session
from tests.odd_names import ODD_NAMES
from tests.own_servers import running_s3


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


def save(home: Home, iteration: int, weights: bytes = b"weights") -> None:
    CheckpointStore(home.checkpoints("run")).save(
        iteration, {"weights": weights, "empty": b""}, {"iteration": iteration}, {"seed": 1}
    )
    home.journal("run").write_text(f"up to {iteration}\n")


def newest(home: Home) -> tuple[int, dict[str, bytes]]:
    loaded = CheckpointStore(home.checkpoints("run")).load_latest()
    assert loaded is not None
    return loaded.iteration, loaded.blobs


def test_the_newest_checkpoint_and_the_journal_come_back(address: str, home: Home, elsewhere: Home):
    for iteration in (1, 2, 3):
        save(home, iteration, b"weights %d" % iteration)
        copy_to_mirror(address, home, "run")
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    assert newest(elsewhere) == (3, {"weights": b"weights 3", "empty": b""})
    assert elsewhere.journal("run").read_text() == "up to 3\n"
    assert elsewhere.run_folders() == ["run"]
    files, root = fsspec.core.url_to_fs(f"{address}/run")
    kept = sorted(Path(path).name for path in files.ls(root, detail=False))
    assert kept == ["iteration-000002", "iteration-000003", "journal"], "two stay, as at home"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_may_have_any_name(tmp_path: Path, home: Home, elsewhere: Home, name: str):
    save(home, 1)
    copy_to_mirror(str(tmp_path / name), home, "run")
    assert (tmp_path / name / "run" / "journal").is_file()
    assert fetch_from_mirror(str(tmp_path / name), elsewhere, "run") == 1


def test_a_checkpoint_that_was_saved_again_replaces_the_one_before(address: str, home: Home, elsewhere: Home):
    save(home, 1, b"before")
    copy_to_mirror(address, home, "run")
    save(home, 1, b"after")
    copy_to_mirror(address, home, "run")
    fetch_from_mirror(address, elsewhere, "run")
    assert newest(elsewhere)[1]["weights"] == b"after"


def test_checkpoints_of_weights_that_were_given_up_go(address: str, home: Home, elsewhere: Home):
    for iteration in (1, 2, 3, 4):
        save(home, iteration, b"weights %d" % iteration)
        copy_to_mirror(address, home, "run")
    store = CheckpointStore(home.checkpoints("run"))
    store.drop_after(3)
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    shutil.rmtree(elsewhere.checkpoints("run"))
    save(home, 2, b"again")  # the run went back
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 2
    assert newest(elsewhere)[1]["weights"] == b"again"


def test_a_home_that_is_behind_the_mirror_deletes_nothing_there(address: str, home: Home, elsewhere: Home):
    """The run was taken over elsewhere: resumed where it came from, it would delete its newer checkpoints."""
    save(home, 3)
    copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    save(elsewhere, 9, b"newer")
    elsewhere.journal("run").write_text("up to 3\nup to 9\n")
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
        open_session(home, store, "run", config)
    shutil.rmtree(home.checkpoints("run"))
    assert fetch_from_mirror(address, home, "run") == 9
    assert newest(home)[1]["weights"] == b"newer"


def test_a_new_run_is_refused_where_the_address_needs_a_package_that_is_not_there(home: Home):
    config = RunConfig.model_validate({"checkpoint": {"mirror": "gcs://bucket/runs"}})
    with pytest.raises(CheckpointError, match="its package is not installed"):
        open_session(home, RunStore(home), "new", config)


def test_torn_copies_do_not_stay(tmp_path: Path, home: Home):
    mirror = tmp_path / "mirror"
    for iteration in (1, 2, 3, 4):
        save(home, iteration)
        copy_to_mirror(str(mirror), home, "run")
        if iteration == 2:
            (mirror / "run" / "iteration-000002" / "manifest.json").unlink()
    assert sorted(path.name for path in (mirror / "run").glob("iter*")) == [
        "iteration-000003",
        "iteration-000004",
    ]


def test_the_pinned_checkpoint_is_copied_and_stays_pinned(address: str, home: Home, elsewhere: Home):
    store = CheckpointStore(home.checkpoints("run"))
    for iteration in (1, 2, 3, 4, 5):
        save(home, iteration, b"weights %d" % iteration)
        if iteration == 2:
            store.pin(2)
        if iteration != 2:  # while the place did not answer
            copy_to_mirror(address, home, "run")
    assert fetch_from_mirror(address, elsewhere, "run") == 5
    there = CheckpointStore(elsewhere.checkpoints("run"))
    assert (there.pinned, there.iterations()) == (2, [2, 5])
    assert there.load(2).blobs["weights"] == b"weights 2"


def test_a_fetch_that_was_cut_off_is_begun_anew(
    tmp_path: Path, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    save(home, 1)
    copy_to_mirror(str(tmp_path / "mirror"), home, "run")
    files = type(fsspec.filesystem("file"))
    get_file = files.get_file

    def without_journal(self: object, path: str, *rest: str) -> None:
        if path.endswith("journal"):
            raise OSError("the connection broke")
        get_file(self, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(files, "get_file", without_journal)
        with pytest.raises(CheckpointError, match="the connection broke"):
            fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run")
    assert fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run") == 1
    assert elsewhere.journal("run").read_text() == "up to 1\n"


def test_a_fetch_that_was_cut_off_between_two_checkpoints_keeps_the_pin(
    tmp_path: Path, home: Home, elsewhere: Home, monkeypatch: pytest.MonkeyPatch
):
    for iteration in (1, 2):
        save(home, iteration)
        CheckpointStore(home.checkpoints("run")).pin(1)
        copy_to_mirror(str(tmp_path / "mirror"), home, "run")
    rename, renamed = Path.rename, []

    def once(self: Path, target: Path) -> Path:
        renamed.append(target)
        if len(renamed) > 1:
            raise OSError("the machine is gone")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", once)
        with pytest.raises(CheckpointError, match="the machine is gone"):
            fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run")
    assert fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run") == 2
    there = CheckpointStore(elsewhere.checkpoints("run"))
    assert (there.pinned, there.iterations()) == (1, [1, 2])
    assert fetch_from_mirror(str(tmp_path / "mirror"), elsewhere, "run") is None


def test_what_is_torn_or_damaged_is_passed_over(tmp_path: Path, home: Home, elsewhere: Home):
    mirror = tmp_path / "mirror"
    for iteration in (1, 2):
        save(home, iteration)
        copy_to_mirror(str(mirror), home, "run")
    torn = mirror / "run" / "iteration-000003"
    shutil.copytree(mirror / "run" / "iteration-000002", torn)
    (torn / "manifest.json").unlink()
    (mirror / "run" / "iteration-000002" / "weights").write_bytes(b"wrong")
    assert fetch_from_mirror(str(mirror), elsewhere, "run") == 1
    assert newest(elsewhere)[0] == 1
    (mirror / "run" / "iteration-000001" / "weights").write_bytes(b"wrong")
    shutil.rmtree(elsewhere.checkpoints("run"))
    with pytest.raises(CheckpointError, match="damaged"):
        fetch_from_mirror(str(mirror), elsewhere, "run")
    assert CheckpointStore(elsewhere.checkpoints("run")).iterations() == []


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
    assert elsewhere.run_folders() == []
    monkeypatch.setenv(MIRROR_VARIABLE, address)
    fetch_where_unknown(elsewhere, "run")
    assert newest(elsewhere)[0] == 4
    for name in ("", "../run", "x" * 5000):
        with pytest.raises(ConfigurationError, match="cannot name a folder"):
            fetch_where_unknown(elsewhere, name)


def test_copies_are_made_beside_the_run_and_the_last_one_is_waited_for(
    address: str, home: Home, elsewhere: Home
):
    troubles: list[str] = []
    mirror = CheckpointMirror(address, home, "run", troubles.append)
    for iteration in (1, 2, 3):
        save(home, iteration)
        mirror.copy_newest()
    mirror.close(60)
    assert fetch_from_mirror(address, elsewhere, "run") == 3
    assert troubles == []


def test_a_place_that_does_not_take_it_is_reported_once_and_the_run_goes_on(tmp_path: Path, home: Home):
    (tmp_path / "file").write_text("no folder")
    troubles: list[str] = []
    mirror = CheckpointMirror(str(tmp_path / "file"), home, "run", troubles.append)
    save(home, 1)
    mirror.copy_newest()
    mirror.close(60)
    assert len(troubles) == 1
    assert "are not copied" in troubles[0]


def test_a_place_that_does_not_answer_is_not_waited_for(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    answers = threading.Event()
    monkeypatch.setattr(checkpoint_mirror, "copy_to_mirror", lambda *_: answers.wait(60))
    troubles: list[str] = []
    mirror = CheckpointMirror(str(tmp_path), home, "run", troubles.append)
    mirror.close(0.1)
    answers.set()
    assert troubles == [f"the last checkpoint was not copied to {tmp_path} in 0.1 s"]


def test_an_unknown_kind_of_address_is_refused(home: Home):
    with pytest.raises(CheckpointError, match=r"checkpoint\.mirror = 'nowhere://x'"):
        copy_to_mirror("nowhere://x", home, "run")


@pytest.mark.parametrize("value", ["relative/folder", "~/x", "s3://", "://x", "s3://key:secret@host/x"])
def test_what_is_no_place_is_refused(value: str):
    with pytest.raises(ValidationError, match=r"checkpoint\.mirror"):
        RunConfig.model_validate({"checkpoint": {"mirror": value}})


def test_the_place_is_no_part_of_what_a_run_computes():
    there = RunConfig.model_validate({"checkpoint": {"mirror": "/mnt/backup/"}})
    assert there.checkpoint.mirror == "/mnt/backup"
    assert there.computes_like(RunConfig())
    assert not there.computes_like(RunConfig.model_validate({"checkpoint": {"every": 2}}))
