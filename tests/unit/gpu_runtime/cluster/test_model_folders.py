"""The folder of a model comes to a host that does not have it, once, whole, and to the same path."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpu_runtime.cluster.ray import model_folders
from gpu_runtime.cluster.ray.model_folders import FolderSource, bring, outermost
from storage.errors import ModelError

FILES = {"config.json": b"{}", "transformer/weights.bin": bytes(range(256)) * 50, "empty": b""}


@dataclass(frozen=True)
class Source:
    """Of one folder."""

    sizes: Callable[[], dict[str, int]]
    part: Callable[[str, int], bytes]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(model_folders, "_PART_BYTES", 1000)
    for name, content in FILES.items():
        path = tmp_path / "driver" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folder = str(tmp_path / "driver")
    return Source(partial(FolderSource().sizes, folder), partial(FolderSource().part, folder))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_arrives_whole_and_in_parts(source: Source, tmp_path: Path):
    asked: list[int] = []

    def part(name: str, offset: int) -> bytes:
        asked.append(offset)
        return source.part(name, offset)

    folder = tmp_path / "host" / "models" / "base"
    bring(folder, source.sizes, part)
    assert files_in(folder) == FILES
    assert max(asked) == 12_000
    bring(folder, lambda: pytest.fail("a folder that is there is used"), part)


def test_of_two_folders_the_outer_one_is_brought():
    assert outermost(["/m/clip", "/m", "/n"], []) == ["/m", "/n"]
    assert outermost(["/base/clip", "/other"], ["/base"]) == ["/base", "/other"]
    assert outermost(["/base", "/base"], ["/base/clip", "/basement"]) == ["/base"]


def test_what_a_killed_process_has_left_is_replaced(source: Source, tmp_path: Path):
    left = tmp_path / "host" / ".base.coming"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    bring(tmp_path / "host" / "base", source.sizes, source.part)
    assert files_in(tmp_path / "host" / "base") == FILES


def test_a_host_without_room_is_refused(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 99, 1))
    with pytest.raises(ModelError, match="GiB free"):
        bring(tmp_path / "host" / "base", source.sizes, source.part)
    assert not (tmp_path / "host" / "base").exists()


def test_what_a_killed_process_has_left_takes_no_room(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    left = tmp_path / "host" / ".base.coming"
    left.mkdir(parents=True)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 0, 10 if left.exists() else 10**6))
    bring(tmp_path / "host" / "base", source.sizes, source.part)
    assert files_in(tmp_path / "host" / "base") == FILES


def test_a_path_that_cannot_be_made_is_refused(source: Source, tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ModelError, match="copy the model there"):
        bring(tmp_path / "file" / "base", source.sizes, source.part)


def test_a_folder_without_files_is_no_model(tmp_path: Path):
    with pytest.raises(ModelError, match="has no files on the driver's host"):
        bring(tmp_path / "host" / "base", dict, lambda *_: b"")
    assert not (tmp_path / "host" / "base").exists()


def test_a_file_that_ends_early_is_no_model(source: Source, tmp_path: Path):
    with pytest.raises(ModelError, match="shorter"):
        bring(tmp_path / "host" / "base", source.sizes, lambda name, offset: b"")
    assert not (tmp_path / "host" / "base").exists()
