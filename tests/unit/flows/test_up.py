"""`spotlight up`: what it refuses of the machine's state, what is noted of it, and what `down` ends.

Refused options are in `tests/bad_inputs.jsonl`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import flows.progress as progress
from flows.deployed import up as module
from flows.deployed.forms import NIGHTLY_CRON, NIGHTLY_ZONE
from flows.deployed.up import check_schedule, down, left_of, sole_supervisor, state_file, up, where_to_look
from flows.server.children import Child
from flows.server.dashboards import serve
from flows.server.note import ServerNote, password_file, reachable, read_note
from storage.errors import ConfigurationError, ServerError
from storage.home import UP_VARIABLE, Home
from storage.processes import python_command
from storage.record.files import locked
from tests.running_up import free_port
from tests.sample_login import write_login

OWN = ServerNote("127.0.0.1", 1)
SCHEDULE = (False, NIGHTLY_CRON, NIGHTLY_ZONE)


def start_up(home: Home, server_port: int, ui_port: int, host: str = "127.0.0.1") -> int:
    return up(home, ServerNote(host, server_port), ui_port, 1, SCHEDULE)


@pytest.fixture(autouse=True)
def no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_taken_port_is_refused_with_the_option_that_changes_it(taken: int, tmp_path: Path):
    with pytest.raises(ServerError, match=rf"port {taken} on 127\.0\.0\.1 is in use.*--server-port"):
        start_up(Home(tmp_path), taken, free_port())
    with pytest.raises(ServerError, match=rf"port {taken} on 127\.0\.0\.1 is in use.*--ui-port"):
        start_up(Home(tmp_path), free_port(), taken)
    assert state_file(Home(tmp_path)).read_text() == ""


def test_an_address_that_others_reach_is_warned_of(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(progress.reporter(), "note", said.append)
    with pytest.raises(ServerError):  # goes no further than the port
        start_up(write_login(Home(tmp_path)), taken, free_port(), "0.0.0.0")
    assert len(said) == 1
    assert said[0].startswith("warning: --host 0.0.0.0: other machines reach the dashboard")


def test_no_address_is_listened_on_without_a_password(tmp_path: Path):
    password_file(Home(tmp_path)).mkdir(parents=True)
    with pytest.raises(ServerError, match="no server starts without one"):
        start_up(write_login(Home(tmp_path)), free_port(), free_port(), "0.0.0.0")
    assert not (tmp_path / "up.json").exists()


def test_the_address_at_which_this_machine_reaches_a_server():
    assert reachable("0.0.0.0") == "127.0.0.1"
    assert reachable("10.1.2.3") == "10.1.2.3"


@pytest.mark.parametrize(
    "schedule",
    # Prefect refuses the last one, too, which machines have as a file.
    [(True, "2", "UTC"), (False, NIGHTLY_CRON, "Mars/Base"), (False, NIGHTLY_CRON, "posix/UTC")],
)
def test_a_wrong_schedule_is_refused_before_anything_is_made(tmp_path: Path, schedule: tuple[bool, str, str]):
    with pytest.raises(ConfigurationError, match=r"--cron '2' has|--timezone '.*' is"):
        up(Home(tmp_path / "new"), OWN, 2, 1, schedule)
    assert not (tmp_path / "new").exists()


def test_names_stand_in_their_own_fields_of_a_schedule():
    check_schedule("0 2 * Jan sun-tue", "Europe/Berlin")


def test_a_day_of_a_schedule_must_come_some_day():
    for comes in ("0 2 29 feb *", "0 2 31,30 2,4 *", "0 2 31 2 sun", "0 2 31 feb-mar *"):
        check_schedule(comes, "UTC")
    with pytest.raises(ConfigurationError, match="never has a day '31'"):
        check_schedule("0 2 31 2,Apr *", "UTC")


def test_a_schedule_is_off_unless_asked_for(tmp_path: Path):
    said = [where_to_look(Home(tmp_path), OWN, "", (active, *SCHEDULE[1:])) for active in (False, True)]
    assert "runs: off (`spotlight up --schedule` runs them '0 2 * * *' in UTC)" in said[0]
    assert "runs: on, '0 2 * * *' in UTC" in said[1]


def test_the_dashboard_alone_refuses_a_taken_port(tmp_path: Path, taken: int):
    with pytest.raises(ServerError, match=rf"port {taken} on 127\.0\.0\.1 is in use.*spotlight ui --port"):
        serve(Home(tmp_path), taken)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).ensure()


Sleeper = Callable[..., psutil.Process]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts a process that sleeps, of the `up` of a home or of none."""
    started: list[subprocess.Popen[str]] = []

    def start(home: Home | None = None, first: str = "pass") -> psutil.Process:
        environment = dict(os.environ) | ({UP_VARIABLE: str(home.path.resolve())} if home else {})
        program = f"import signal, time; {first}; print('up', flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def note_of_a_crash(home: Home, machine: str = socket.gethostname(), pid: int = 2**22 + 1) -> None:
    ServerNote("127.0.0.1", 1, pid=pid, machine=machine).write(state_file(home))


def test_down_ends_what_is_left_and_nothing_else(
    home: Home, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("flows.server.children.ENDING_S", 0.5)
    child, deaf = sleeper(home), sleeper(home, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    others = [sleeper(Home(home.path / "another")), sleeper()]
    assert {*left_of(home)} == {child, deaf}, "not this process either"
    note_of_a_crash(home, pid=others[1].pid)  # which another process has by now
    words = {process.pid: module._in_words(process) for process in (child, deaf)}
    assert words[child.pid].startswith("-c import signal")
    assert sorted(down(home)) == sorted(words.values())
    assert not child.is_running() and not deaf.is_running()
    assert all(process.is_running() for process in others)
    assert state_file(home).read_text() == ""
    assert down(home) == []


def test_an_up_and_a_second_down_wait_for_the_first_down(home: Home):
    said = "is already running for .*, or `spotlight down` ends it"
    with ThreadPoolExecutor(1) as thread:
        with locked(state_file(home)):
            second = thread.submit(down, home)
            with pytest.raises(TimeoutError):
                second.result(0.2)
            with pytest.raises(ServerError, match=said), sole_supervisor(home, OWN):
                pass
        assert second.result(60) == []


def test_a_second_supervisor_of_a_home_is_refused(home: Home, tmp_path: Path):
    with sole_supervisor(home, OWN):
        said = rf"is already running.*process {os.getpid()}, {OWN.ui_url}.*`spotlight down`"
        with pytest.raises(ServerError, match=said), sole_supervisor(home, OWN):
            pass
        with sole_supervisor(Home(tmp_path / "another"), OWN):
            shutil.rmtree(tmp_path / "another")  # its end fails no more for that
    with sole_supervisor(home, OWN):
        next_one = replace(OWN, port=2)
        state_file(home).unlink()
        next_one.write(state_file(home))
    assert read_note(state_file(home)) == next_one, "a home that was deleted and made again"


@pytest.mark.parametrize("note", [None, "{"])
def test_what_a_crashed_one_left_is_refused_until_it_is_gone(home: Home, sleeper: Sleeper, note: str | None):
    left = sleeper(home)
    note_of_a_crash(home)
    if note is not None:
        state_file(home).write_text(note)
    said = r"left 1 processes .*end them with `spotlight down`"
    with pytest.raises(ServerError, match=said), sole_supervisor(home, OWN):
        pass
    left.kill()
    left.wait()
    with sole_supervisor(home, OWN):
        assert read_note(state_file(home)) == OWN


def test_the_end_of_a_child_is_told_though_its_log_was_removed(tmp_path: Path):
    log = tmp_path / "its.log"
    child = Child("dashboard", python_command("-c", "raise SystemExit(3)"), os.environ, log)
    child.process.wait(30)
    log.unlink()
    assert child.ended == f"the dashboard ended with code 3 (log: {log})"


def test_a_home_of_another_machine_is_refused(home: Home):
    note_of_a_crash(home, "elsewhere")
    said = "runs on elsewhere; end it there"
    with pytest.raises(ServerError, match=said), sole_supervisor(home, OWN):
        pass
    with pytest.raises(ServerError, match=said):
        down(home)
