"""The home folder: what cannot be one is refused with its reason, and looking makes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from storage.home import HOME_VARIABLE, Home


def named(path: Path | str) -> Home:
    return Home.from_environment({HOME_VARIABLE: str(path)})


def test_a_path_with_a_null_byte_is_refused(tmp_path: Path):
    """Other paths that cannot be a folder are in `tests/bad_inputs.jsonl`."""
    with pytest.raises(ConfigurationError, match=r"the home folder '.*cannot be used: .*null byte"):
        named(tmp_path / "a\0b")


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigurationError, match=f"'{tmp_path}/runs' cannot be made: File exists"):
        named(tmp_path).ensure()


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
    home = named("some/where").ensure()
    assert home.runs.is_dir() and home.artifacts.is_dir()
    assert home.mlflow_uri == f"sqlite:///{tmp_path}/some/where/mlflow.db"
    assert Home.from_environment({}).path == Path(__file__).resolve().parents[3] / ".spotlight"


def test_the_folder_that_one_works_in_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        named("relative")
