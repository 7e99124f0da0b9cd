"""What is noted of a `spotlight up`, who counts as one of its processes, and what `down` ends."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from flows.deployed import up
from flows.deployed.up import down, left_of, sole_supervisor, state_file
from flows.server.children import Child
from flows.server.note import FileLock
from storage.errors import ServerError
from storage.home import UP_VARIABLE, Home

URL = "http://127.0.0.1:1"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).ensure()


class Sleepers:
    """Processes that sleep, of the `up` of a home or of none."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def start(self, home: Home | None, stubborn: bool = False) -> psutil.Process:
        environment = dict(os.environ) | ({UP_VARIABLE: str(home.path.resolve())} if home else {})
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
        program = f"import signal, time; {ignore} print('up', flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        self.all.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return psutil.Process(process.pid)


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    made = Sleepers()
    yield made
    for process in made.all:
        process.kill()
        process.communicate()


def note_of_a_crash(home: Home, machine: str = up._MACHINE) -> None:
    state_file(home).write_text(json.dumps({"machine": machine, "pid": 2**22 + 1, "url": URL}))


def test_only_processes_of_the_home_are_left(home: Home, sleepers: Sleepers):
    ours = sleepers.start(home)
    sleepers.start(Home(home.path / "another"))
    sleepers.start(None)
    assert left_of(home) == [ours]
    assert UP_VARIABLE not in psutil.Process().environ(), "the supervisor is none of them"


def test_down_ends_what_is_left_and_nothing_else(
    home: Home, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(up, "_RUNS_END_S", 0.5)
    child, deaf, stranger = sleepers.start(home), sleepers.start(home, stubborn=True), sleepers.start(None)
    note_of_a_crash(home)
    words = {process.pid: up._in_words(process) for process in (child, deaf)}
    assert words[child.pid].startswith("-c import signal")
    assert sorted(down(home)) == sorted(words.values())
    assert not child.is_running() and not deaf.is_running()
    assert stranger.is_running()
    assert state_file(home).read_text() == ""
    assert down(home) == []


def test_down_leaves_the_pid_of_an_up_that_is_gone_alone(home: Home, sleepers: Sleepers):
    stranger = sleepers.start(None)
    state_file(home).write_text(json.dumps({"machine": up._MACHINE, "pid": stranger.pid, "url": URL}))
    assert down(home) == []
    assert stranger.is_running()


@pytest.fixture
def held(home: Home) -> Iterator[FileLock]:
    """The lock of a `down` that is at work, or of an `up` that has not noted itself yet."""
    lock = FileLock(state_file(home))
    assert lock.attempt(exclusive=True)
    yield lock
    lock.close()


def test_a_second_down_waits_for_the_first_and_signals_nobody(home: Home, sleepers: Sleepers, held: FileLock):
    stranger = sleepers.start(None)
    for note in (
        "",
        json.dumps({"machine": up._MACHINE, "pid": stranger.pid, "started_at": 1.0, "url": URL}),
    ):
        held.rewrite(note)
        with ThreadPoolExecutor(1) as thread:
            second = thread.submit(down, home)
            with pytest.raises(TimeoutError):
                second.result(0.2)
            fcntl.flock(held.descriptor, fcntl.LOCK_UN)
            assert second.result(60) == []
        assert held.attempt(exclusive=True)
    assert stranger.is_running()


def test_an_up_beside_a_down_is_told_to_wait(home: Home, held: FileLock):
    note_of_a_crash(home)
    said = "another `spotlight up` .* is just starting, or `spotlight down` is ending one; try again"
    with pytest.raises(ServerError, match=said), sole_supervisor(home, URL):
        pass


def test_down_does_not_reach_for_another_machine(home: Home):
    note_of_a_crash(home, "elsewhere")
    with pytest.raises(ServerError, match="runs on elsewhere"):
        down(home)


def test_a_second_supervisor_of_a_home_is_refused(home: Home, tmp_path: Path):
    with sole_supervisor(home, URL):
        said = rf"runs already.*process {os.getpid()}, {URL}.*`spotlight down`"
        with pytest.raises(ServerError, match=said), sole_supervisor(home, URL):
            pass
        with sole_supervisor(Home(tmp_path / "another"), URL):
            pass
    with sole_supervisor(home, URL):
        pass


@pytest.mark.parametrize("note", [None, "{"])
def test_what_a_crashed_one_left_is_refused_until_it_is_gone(
    home: Home, sleepers: Sleepers, note: str | None
):
    left = sleepers.start(home)
    note_of_a_crash(home)
    if note is not None:
        state_file(home).write_text(note)
    said = r"left 1 processes .*end them with `spotlight down`"
    with pytest.raises(ServerError, match=said), sole_supervisor(home, URL):
        pass
    left.kill()
    left.wait()
    with sole_supervisor(home, URL):
        assert json.loads(state_file(home).read_text())["pid"] == os.getpid()


def test_the_end_of_a_child_is_told_though_its_log_was_removed(tmp_path: Path):
    child = Child(
        "dashboard", [sys.executable, "-c", "raise SystemExit(3)"], os.environ, tmp_path / "its.log"
    )
    child.wait(30)
    child.log.unlink()
    assert child.ended == f"the dashboard ended with code 3 (log: {child.log})"


def test_a_home_of_another_machine_is_refused(home: Home):
    note_of_a_crash(home, "elsewhere")
    said = "belongs to a `spotlight up` on elsewhere"
    with pytest.raises(ServerError, match=said), sole_supervisor(home, URL):
        pass
