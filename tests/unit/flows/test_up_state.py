"""What is noted of a `spotlight up`, who counts as one of its processes, and what `down` ends."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.deployed.up import down
from flows.server.up_state import (
    DEPLOYMENTS,
    Member,
    UpState,
    left_of,
    new_token,
    read_state,
    sole_supervisor,
    state_file,
    write_state,
)
from storage.errors import ServerError
from storage.home import UP_TOKEN_VARIABLE, Home

HOST = socket.gethostname()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).ensure()


class Sleeper:
    """A process that sleeps, with or without a token, and says when it does."""

    def __init__(self, token: str | None, stubborn: bool = False) -> None:
        environment = dict(os.environ) | ({UP_TOKEN_VARIABLE: token} if token else {})
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
        program = f"import signal, time; {ignore} print('up', flush=True); time.sleep(600)"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def sleepers() -> Iterator[list[Sleeper]]:
    made: list[Sleeper] = []
    yield made
    for sleeper in made:
        sleeper.process.kill()
        sleeper.process.communicate()


def noted(token: str, *members: Member, supervisor: Member | None = None) -> UpState:
    gone = Member("up", 2**22 + 1, 0.0)
    return UpState(HOST, token, "http://127.0.0.1:1/api", supervisor or gone, members)


def test_what_is_written_is_read_again(home: Home):
    assert read_state(home) is None
    state = noted(new_token(), Member.of("Prefect server", os.getpid()))
    write_state(home, state)
    assert read_state(home) == state


def test_a_damaged_note_is_refused(home: Home):
    state_file(home).write_text("{")
    with pytest.raises(ServerError, match=r"up\.json cannot be read .* then delete it"):
        read_state(home)


def test_only_processes_with_the_token_are_left(sleepers: list[Sleeper]):
    token = new_token()
    ours, other, plain = Sleeper(token), Sleeper(new_token()), Sleeper(None)
    sleepers += [ours, other, plain]
    found = left_of(noted(token, Member.of(DEPLOYMENTS, ours.pid), Member.of("dashboard", plain.pid)))
    assert [process.pid for process in found] == [ours.pid]


def test_down_ends_what_is_left_and_no_process_that_was_given_the_pid(home: Home, sleepers: list[Sleeper]):
    token = new_token()
    child, grandchild, stranger = Sleeper(token), Sleeper(token), Sleeper(None)
    sleepers += [child, grandchild, stranger]
    reused = Member("dashboard", stranger.pid, 0.0)
    write_state(home, noted(token, Member.of(DEPLOYMENTS, child.pid), reused))
    ended = down(home)
    assert ended[0] == DEPLOYMENTS or ended[1] == DEPLOYMENTS
    assert len(ended) == 2
    assert not child.lives
    assert not grandchild.lives
    assert stranger.lives
    assert read_state(home) is None
    assert down(home) == []


def test_down_leaves_a_supervisors_reused_pid_alone(home: Home, sleepers: list[Sleeper]):
    stranger = Sleeper(None)
    sleepers.append(stranger)
    write_state(home, noted(new_token(), supervisor=Member("up", stranger.pid, 0.0)))
    assert down(home) == []
    assert stranger.lives


def test_down_kills_who_does_not_listen(home: Home, sleepers: list[Sleeper], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flows.server.up_state._end.__defaults__", (0.2,))
    token = new_token()
    deaf = Sleeper(token, stubborn=True)
    sleepers.append(deaf)
    write_state(home, noted(token, Member.of("dashboard", deaf.pid)))
    assert down(home) == ["dashboard"]
    assert not psutil.pid_exists(deaf.pid)


def test_down_does_not_reach_for_another_machine(home: Home):
    write_state(home, dataclasses.replace(noted("a"), host="elsewhere"))
    with pytest.raises(ServerError, match="runs on elsewhere"):
        down(home)


def test_a_second_supervisor_of_a_home_is_refused(home: Home, tmp_path: Path):
    with sole_supervisor(home):
        write_state(home, noted("a", supervisor=Member.of("up", os.getpid())))
        said = rf"runs already.*process {os.getpid()}.*`spotlight down`"
        with pytest.raises(ServerError, match=said), sole_supervisor(home):
            pass
        with sole_supervisor(Home(tmp_path / "another")):
            pass


def test_what_a_crashed_one_left_is_refused_until_it_is_gone(home: Home, sleepers: list[Sleeper]):
    token = new_token()
    left = Sleeper(token)
    sleepers.append(left)
    write_state(home, noted(token))
    said = r"left 1 processes .*end them with `spotlight down`"
    with pytest.raises(ServerError, match=said), sole_supervisor(home):
        pass
    left.process.kill()
    left.process.wait()
    with sole_supervisor(home):
        assert read_state(home) is None, "an empty note of an earlier one is dropped"


def test_a_home_of_another_machine_is_refused(home: Home):
    write_state(home, dataclasses.replace(noted("a"), host="elsewhere"))
    with pytest.raises(ServerError, match="belongs to a `spotlight up` on elsewhere"), sole_supervisor(home):
        pass


def test_the_process_itself_has_no_token():
    assert UP_TOKEN_VARIABLE not in psutil.Process().environ()
