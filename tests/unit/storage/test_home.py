"""The home folder: every path that cannot be one is refused with its reason, and looking makes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.home import HOME_VARIABLE, Home


def named(path: Path | str) -> Home:
    return Home.from_environment({HOME_VARIABLE: str(path)})


@pytest.fixture
def places(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file", "is a file, not a folder"),
        ("file/below/it", "/file' is a file, not a folder"),
        ("nowhere", "is a link to nothing"),
        ("nowhere/below", "/nowhere' is a link to nothing"),
        ("circle", "symbolic links"),
        ("a\0b", "null byte"),
        ("runs?", "its path has '?'"),
        ("50% off/home", "its path has '%'"),
        ("a\\b", "its path has '\\\\'"),
        ("x" * 300, "File name too long"),
        ("y/" * 3000, "File name too long"),
    ],
)
def test_a_path_that_cannot_be_a_folder(places: Path, name: str, says: str):
    with pytest.raises(ConfigurationError, match=r"the home folder '.*cannot be used: ") as refused:
        named(places / name)
    assert says in str(refused.value)
    assert str(refused.value).endswith(f"; set {HOME_VARIABLE} to a folder that this user can write")
    assert len(str(refused.value)) < 500


def test_a_user_that_does_not_exist():
    with pytest.raises(ConfigurationError, match=r"'~nobody-of-this-name/x'"):
        named("~nobody-of-this-name/x")


def test_a_place_where_no_folder_can_be_made():
    home = named("/proc/self/spotlight")
    with pytest.raises(ConfigurationError, match="'/proc/self/spotlight' cannot be made: "):
        home.ensure()


def test_folders_that_this_user_may_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = named(tmp_path).ensure()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert named(tmp_path) == home, "a home that is read only can be looked at"
    with pytest.raises(ConfigurationError, match=f"'{tmp_path}' cannot be written to"):
        home.ensure()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigurationError, match="this user cannot read it"):
        named(tmp_path)


def test_a_folder_that_may_not_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigurationError, match=r"cannot be used: Permission denied; set"):
        named(tmp_path / "home")


def test_a_relative_path_begins_here_and_looking_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert named("some/where").path == tmp_path / "some" / "where"
    assert not list(tmp_path.iterdir())
    assert named("some/where").ensure().runs.is_dir()


def test_the_folder_that_one_works_in_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        named("relative")
