"""A home belongs to its owner: what other users of the machine can read of it is nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_runtime.worker.history import HistoryLog, new_life
from storage.home import Home, close_to_others, is_open_to_others
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tests.private_files import open_to_others
from tests.sample_run import write_sample_run

_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def test_a_new_home_belongs_to_its_owner_whatever_the_umask(tmp_path: Path):
    home = Home(tmp_path / "above" / "home").ensure()
    write_sample_run(RunStore(home), "r", iterations=1)
    (home.logs / "a.log").write_text("said")
    CheckpointStore(home.run("r")).save(1, {"weights": b"1"}, {})
    HistoryLog(new_life(home.history("r")), "driver").close()
    assert len(list(home.path.rglob("*"))) > 12
    assert open_to_others(home.path) == []
    assert not is_open_to_others(tmp_path / "above")


def test_a_run_and_its_history_are_closed_where_no_home_was_ensured(tmp_path: Path):
    home = Home(tmp_path / "home")
    write_sample_run(RunStore(home), "r", iterations=1)
    HistoryLog(new_life(home.history("r")), "driver").close()
    assert not is_open_to_others(home.run("r")), "nothing in it can be reached"
    assert not is_open_to_others(home.database)
    assert open_to_others(home.history("r")) == []


def test_processes_that_a_home_starts_inherit_it(tmp_path: Path):
    Home(tmp_path / "home").ensure()
    made = tmp_path / "home" / "made"
    subprocess.run([sys.executable, "-c", f"open({str(made)!r}, 'w')"], check=True)
    assert made.stat().st_mode & 0o777 == 0o600


def test_a_home_that_others_can_enter_is_closed(tmp_path: Path):
    home = Home(tmp_path)
    for folder in ("runs/r/iteration-000001/checkpoint", "prefect", "notes"):
        (tmp_path / folder).mkdir(parents=True)
    mine = tmp_path / "notes" / "mine.txt"
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("another's")
    for file in ("spotlight.duckdb", "prefect/prefect.db-wal", "runs/r/iteration-000001/checkpoint/w"):
        (tmp_path / file).write_text("kept")
    mine.write_text("not of Spotlight")
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "wandb").symlink_to(mine.parent)
    tmp_path.chmod(0o755)
    home.ensure()
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert set(open_to_others(tmp_path)) == {mine, mine.parent}, "unreachable, and not ours to change"
    assert is_open_to_others(outside)
    assert (tmp_path / "spotlight.duckdb").read_text() == "kept"


def test_a_home_that_is_a_link_is_closed(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(folder)
    Home(tmp_path / "link").ensure()
    assert not is_open_to_others(folder)


def test_the_persons_own_home_directory_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    person = tmp_path / "person"
    person.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(person))
    (person / "logs").mkdir()
    Home(person).ensure()
    assert is_open_to_others(person)
    assert open_to_others(person) == [person]


def test_folders_for_all_and_what_is_not_there_are_left_alone(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    close_to_others(shared)
    assert shared.stat().st_mode & 0o7777 == 0o1777
    close_to_others(tmp_path / "missing")


def test_the_token_of_ray_is_closed(tmp_path: Path):
    """In a process of its own: Ray's folder is read from the environment when it is imported."""
    code = (
        "from gpu_runtime.cluster.ray import ray_cluster\n"
        "ray_cluster.RayCluster._connect = lambda self: None\n"
        "ray_cluster.ray.cluster_resources = lambda: {}\n"
        "ray_cluster.ray.nodes = lambda: []\n"
        "from storage.config.run_config import RunConfig\n"
        "ray_cluster.RayCluster(RunConfig())\n"
    )
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=_ROOT, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert token.stat().st_mode & 0o777 == 0o600
