"""One server a home, whoever comes, goes and is killed: real runs, which only keep the books in Prefect.

That a run outlives the kill of its server is tested in `tests/fault/test_killed_run.py`, and the end of the
run that had started it in `test_runs_at_once.py`.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import flows.progress as progress
from flows.server import local_server as module
from flows.server.local_server import LocalServer
from flows.server.note import SERVER_PORT, ServerNote, living_server, note_file, password_file
from storage.errors import ServerError
from storage.home import Home
from tests.homes_server import noted_server
from tests.light_run import books, ended, started
from tests.running_up import port_taken, running_up, spotlight, wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").ensure()


def tasks_done(home: Home) -> dict[str, int]:
    """Completed tasks of each run."""
    return {name: tasks for name, (_, tasks) in books(home).items()}


def server_of(home: Home) -> psutil.Process:
    return psutil.Process(note_of(home).pid)


def note_of(home: Home) -> ServerNote:
    note = living_server(home)
    assert note is not None
    return note


@pytest.mark.slow
def test_nothing_outlives_the_kill_of_a_run_and_it_takes_no_setting_from_a_person(home: Home, tmp_path: Path):
    (folder := tmp_path / "folder").mkdir()
    (folder / ".env").write_text("PREFECT_SERVER_API_BASE_PATH=/elsewhere\n")
    persons = {
        "PREFECT_SERVER_API_BASE_PATH": "/elsewhere",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:////tmp/a-person's.db",
        "ALL_PROXY": "socks5://127.0.0.1:9",
    }
    run = started(home, "killed", 600, folder, persons)
    wait_until("it goes on", lambda: bool(tasks_done(home).get("killed")) or run.poll() is not None)
    assert run.poll() is None, run.communicate()[0]
    server = server_of(home)
    assert [name for name in server.environ() if name.startswith("PREFECT_")] == []
    assert Path(server.cwd()) == home.prefect
    family = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.communicate()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert server in family and [process.cmdline() for process in alive] == []
    assert living_server(home) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_up_beside_a_busy_run_uses_its_server_and_goes_on_with_its_own(home: Home):
    run = started(home, "busy", 400)
    wait_until("it writes", lambda: tasks_done(home).get("busy", 0) > 3)
    note = note_of(home)
    with running_up(home, server_port=note.port) as up:
        run.kill()
        run.communicate()
        wait_until("there is another", lambda: living_server(home) not in (None, note))
        assert server_of(home).ppid() == up.process.pid
        form = {"preset": "smoke", "settings": ["sampling.noise_level=7"]}
        flow_run = up.start_run("post-train", form).json()
        assert up.wait_for_end(flow_run["id"])["type"] == "FAILED", "its runs are started, and heard of"
        assert up.end() == 0
        up.assert_nothing_is_left()


@pytest.mark.slow
def test_a_port_that_somebody_has_is_left_to_him_and_an_up_elsewhere_is_refused(home: Home):
    with port_taken(SERVER_PORT):
        run = started(home, "elsewhere", 60)
        wait_until("it has a server", lambda: living_server(home) is not None)
        note = note_of(home)
        assert note.port != SERVER_PORT
        refused = spotlight(home, "up", "--server-port", "4998", "--ui-port", "4999")
        assert refused.returncode == 2
        assert f"use `--server-port {note.port} --host 127.0.0.1`" in " ".join(refused.stderr.split())
        came_to, _ = ended(run)
        assert came_to["ui_url"] == note.ui_url
        assert spotlight(home, "down").stdout.startswith("no process of `spotlight up` is left")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(progress.reporter(), "note", said.append)
    return said


def test_one_that_cannot_be_started_again_is_tried_once_more_later(home: Home, notes: list[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with noted_server(home) as note:
            server = LocalServer(home)
            assert server.note == note and server.is_ready()
        server.note = replace(note, port=taken.getsockname()[1])  # which is another's by now
        with server.kept_alive():
            wait_until("it is said", lambda: len(notes) >= 2)
    assert notes[0].startswith("warning: the Prefect server ended with the process that had started it")
    assert "cannot be listened on" in notes[1] and notes[1].endswith("; retrying in 0.5 s")


def test_one_that_asks_for_no_password_is_refused(home: Home):
    said = "answered 200 to a request without a password"
    with noted_server(home, asks=False), pytest.raises(ServerError, match=said):
        LocalServer(home).wait_ready()


def test_one_that_stays_silent_is_refused_and_a_person_who_waits_learns_why(
    home: Home, notes: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_START_LIMIT_S", 0.5)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    with noted_server(home):
        password_file(home).write_text(f"other:{'x' * 20}")
        with pytest.raises(ServerError, match=r"did not answer within 0\.5 s; see .*answered 401"):
            LocalServer(home).wait_ready()
    assert ["is not ready yet: http" in note for note in notes] == [True]


def test_a_proxy_that_no_client_can_use_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    with pytest.raises(ServerError, match=r"the proxy that ALL_PROXY names .*socks5://HOST:PORT"):
        LocalServer(home)
    assert living_server(home) is None


def test_no_server_starts_without_a_password(home: Home):
    password_file(home).mkdir(parents=True)
    with pytest.raises(ServerError, match="no server starts without one"):
        LocalServer(home, ServerNote("0.0.0.0", 0))
    assert not note_file(home).exists()
