"""Saving, loading, falling back, pruning; each torn state that a kill could leave."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

import storage.record.checkpoints
import storage.record.files
from storage.errors import CheckpointError
from storage.record.checkpoints import CheckpointStore
from storage.record.files import RowFolder

BLOBS = {"policy.safetensors": b"weights" * 100, "optimizer.pt": bytes(range(256)), "empty": b""}


def save(store: CheckpointStore, iteration: int) -> Path:
    return store.save(iteration, BLOBS | {"n": str(iteration).encode()}, {"iteration": iteration})


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run")


def test_what_is_saved_is_loaded(store: CheckpointStore):
    path = save(store, 12)
    assert path == store.folder / "iteration-000012" / "checkpoint"
    loaded = store.load_latest()
    assert loaded is not None
    assert (loaded.iteration, loaded.path, loaded.rejected) == (12, path, [])
    assert loaded.blobs == BLOBS | {"n": b"12"}
    assert loaded.state == {"iteration": 12}


def test_any_buffer_is_a_blob(store: CheckpointStore):
    floats = array("f", [1.0, 2.0])
    store.save(1, {"view": memoryview(floats), "bytearray": bytearray(b"ab"), "none": memoryview(b"")}, {})
    assert store.load(1).blobs == {"view": floats.tobytes(), "bytearray": b"ab", "none": b""}


def test_without_checkpoints_there_is_none(store: CheckpointStore):
    assert store.load_latest() is None
    store.folder.mkdir()
    assert store.load_latest() is None
    with pytest.raises(CheckpointError, match="no checkpoint of iteration 3"):
        store.load(3)


def test_older_ones_go(store: CheckpointStore):
    for iteration in (1, 2, 3):
        save(store, iteration)
    assert store.iterations() == [2, 3]
    assert names(store.folder / "iteration-000001") == [], "rows would stay"


def replaced(name: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes().replace(old, new, 1))


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: os.truncate(path / "optimizer.pt", 10),
    replaced("optimizer.pt", b"\x07", b"\x06"),
    lambda path: (path / "optimizer.pt").unlink(),
    lambda path: (path / "manifest.json").unlink(),
    replaced("manifest.json", b'"iteration": 2', b'"iteration": 3'),
    lambda path: os.truncate(path / "manifest.json", 25),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_one_is_passed_over_and_told(
    store: CheckpointStore, damage, caplog: pytest.LogCaptureFixture
):
    save(store, 1)
    damage(save(store, 2))
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.iteration == 1
    assert len(loaded.rejected) == 1
    assert "iteration-000002" in loaded.rejected[0]
    assert caplog.messages == [f"{loaded.rejected[0]}; the checkpoint of iteration 1 is used instead"]
    with pytest.raises(CheckpointError):
        store.load(2)
    with pytest.raises(CheckpointError, match="iteration-000002"):
        store.load_latest(passes_over=False)


def test_all_damaged_is_an_error(store: CheckpointStore):
    DAMAGES[1](save(store, 1))
    DAMAGES[0](save(store, 2))
    both = r"iteration-000002\S+ has 10 bytes, not 256; .*iteration-000001\S+ fails its \w+ checksum"
    with pytest.raises(CheckpointError, match=both):
        store.load_latest()


def test_a_checkpoint_of_another_format_is_refused(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(storage.record.checkpoints, "_FORMAT", 99)
        save(store, 1)
    with pytest.raises(CheckpointError, match="has format 99, this code reads"):
        store.load(1)


def test_a_save_after_going_back_is_the_newest_and_stays(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    save(store, 5)
    DAMAGES[1](store.folder / "iteration-000005" / "checkpoint")
    save(store, 4)
    assert store.iterations() == [4]
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.iteration == 4


def test_the_same_iteration_again_replaces(store: CheckpointStore):
    save(store, 3)
    store.save(3, {"other": b"x"}, {})
    assert store.load(3).blobs == {"other": b"x"}
    assert names(store.folder) == ["iteration-000003"]


def test_killed_between_the_two_renames_of_a_replacement(store: CheckpointStore):
    path = save(store, 3)
    path.parent.rename(store.folder / ".replaced-iteration-000003")
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.iteration == 3
    save(store, 4)
    assert store.iterations() == [3, 4]


def test_killed_after_the_second_rename_of_a_replacement(store: CheckpointStore):
    path = save(store, 3)
    shutil.copytree(path.parent, store.folder / ".replaced-iteration-000003")
    save(store, 4)
    assert store.iterations() == [3, 4]
    assert store.load(3).path == path


def test_a_load_that_a_replacement_falls_into(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch):
    path = save(store, 1)
    read_bytes = Path.read_bytes

    def moved_aside(file: Path) -> bytes:
        if file.name != "manifest.json":
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            path.parent.rename(replaced)  # as `save` does before its new folder gets the name
        return read_bytes(file)

    replaced = store.folder / ".replaced-iteration-000001"
    monkeypatch.setattr(Path, "read_bytes", moved_aside)
    loaded = store.load_latest()
    assert loaded is not None
    assert (loaded.iteration, loaded.path, loaded.rejected) == (1, replaced / "checkpoint", [])


def test_a_look_that_saves_overtake_again_and_again_finds_the_newest(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    module, ahead = storage.record.checkpoints, list(range(2, 10))
    row_folders = module.row_folders

    def overtaken(run: Path) -> list[RowFolder]:
        listed = row_folders(run)
        monkeypatch.setattr(module, "row_folders", row_folders)
        for _ in ahead[: module.KEPT]:  # what was listed has no checkpoint afterwards
            save(store, ahead.pop(0))
        monkeypatch.setattr(module, "row_folders", overtaken)
        return listed

    save(store, 1)
    monkeypatch.setattr(module, "row_folders", overtaken)
    loaded = store.load_latest()
    assert loaded is not None and loaded.iteration == 9


def test_leftovers_go_with_the_next_save_and_not_with_a_load(store: CheckpointStore):
    save(store, 1)
    for leftover in (".saving-iteration-000002", ".deleting-iteration-000000"):
        (store.folder / leftover).mkdir()
        (store.folder / leftover / "policy.safetensors").write_bytes(b"torn")
    (store.folder / "notes.txt").write_text("a person's own file")
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.iteration == 1
    assert len(names(store.folder)) == 4
    save(store, 2)
    assert names(store.folder) == ["iteration-000001", "iteration-000002", "notes.txt"]


def test_a_refusal_of_the_disk_lets_go_of_what_was_being_written(store: CheckpointStore, tmp_path: Path):
    (tmp_path / "database").write_bytes(bytes(1 << 20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        pytest.raises(CheckpointError, match="File too large"),
        (tmp_path / "database").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            store.save(1, {"database": view}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_earlier_ones(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch):
    save(store, 1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.record.files, "write_durably", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(store, 2)
    monkeypatch.undo()
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.iteration == 1
    save(store, 2)
    assert store.iterations() == [1, 2]


@pytest.mark.parametrize("name", ["../evil", "manifest.json", "state.json", "", ".hidden", "a/b"])
def test_names_that_could_do_harm_are_refused(store: CheckpointStore, name: str):
    with pytest.raises(ValueError, match="cannot be a blob's name"):
        store.save(1, {name: b""}, {})


def test_impossible_arguments(tmp_path: Path):
    with pytest.raises(ValueError, match="iteration is -1"):
        CheckpointStore(tmp_path).save(-1, {}, {})
    CheckpointStore(tmp_path).save(0, {}, {})


def test_a_pinned_checkpoint_stays_until_another_one_is_pinned(store: CheckpointStore):
    assert (store.pinned, store.oldest) == (None, 0)
    for iteration in range(1, 5):
        save(store, iteration)
        if iteration == 2:
            store.pin(2)
    assert (store.pinned, store.oldest, store.iterations()) == (2, 2, [2, 3, 4])
    store.pin(4)
    save(store, 5)
    assert (store.pinned, store.iterations()) == (4, [4, 5])
    with pytest.raises(CheckpointError, match="no checkpoint of iteration 9"):
        store.pin(9)


def test_a_run_that_went_back_before_its_pin_has_none(store: CheckpointStore):
    for iteration in (1, 2, 3):
        save(store, iteration)
    store.pin(3)
    save(store, 2)
    assert (store.pinned, store.iterations()) == (None, [2])


def test_later_checkpoints_are_dropped(store: CheckpointStore):
    for iteration in (1, 2):
        save(store, iteration)
    store.drop_after(1)
    assert store.iterations() == [1]
    with pytest.raises(CheckpointError, match="no checkpoint of iteration 5"):
        store.drop_after(5)
