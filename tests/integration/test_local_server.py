"""One server a home, whoever comes and goes: real processes, locks and ports, without Prefect's seconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

import flows.progress as progress
from flows.server import local_server as module
from flows.server.local_server import LocalServer
from flows.server.note import living_server, note_file
from flows.server.password import password_file
from storage.errors import ServerError
from storage.home import Home
from storage.processes import set_environment
from tests import plain_server
from tests.running_up import ROOT, wait_until

HOLDER = """
import sys, time
from pathlib import Path
from flows.server import local_server
from storage.home import Home
local_server.SERVER_MODULE = sys.argv[2]
server = local_server.LocalServer(Home(Path(sys.argv[1])), 0)
print(server.note.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVER_MODULE", plain_server.MODULE)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home").ensure()
    yield home
    note = living_server(home)
    if note is not None:
        os.kill(note.pid, signal.SIGKILL)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(progress.reporter(), "note", said.append)
    return said


def answering(server: LocalServer) -> int:
    """The process that answers at a server's address."""
    user, _, secret = server.client_environment["PREFECT_API_AUTH_STRING"].partition(":")
    return int(httpx.get(f"{server.note.api_url}/admin/version", auth=(user, secret), timeout=60).text)


def holder(home: Home) -> subprocess.Popen[str]:
    """Another process that uses the home's server, and has it by now."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home.path), plain_server.MODULE],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip().isdigit()
    return child


@pytest.mark.slow
def test_several_that_come_at_once_share_one_server_a_home(tmp_path: Path):
    homes = [Home(tmp_path / name) for name in "abc"]
    together = threading.Barrier(6)

    def come(home: Home) -> LocalServer:
        together.wait()
        return LocalServer(home, 4200)

    with ThreadPoolExecutor(6) as pool:
        servers = list(pool.map(come, homes * 2))
    try:
        for server in servers:
            server.wait_ready()
        pids = [server.note.pid for server in servers]
        assert pids[:3] == pids[3:], "one server a home"
        assert len(set(pids)) == 3
        assert len({server.note.api_url for server in servers}) == 3
        assert [answering(server) for server in servers] == pids, "each at its own address"
        assert len({server.client_environment["PREFECT_API_AUTH_STRING"] for server in servers}) == 3
    finally:
        for server in servers:
            server.stop()
    assert [living_server(home) for home in homes] == [None] * 3


@pytest.mark.slow
def test_a_port_that_somebody_has_is_left_to_him(home: Home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = LocalServer(home, taken.getsockname()[1])
        try:
            server.wait_ready()
            assert answering(server) == server.note.pid
            assert not server.note.api_url.startswith(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        finally:
            server.stop()
        with pytest.raises(
            ServerError,
            match=r"while starting, the Prefect server ended with code 1(.|\n)*cannot be listened on",
        ):
            LocalServer(home, taken.getsockname()[1], exact=True)


@pytest.mark.slow
def test_who_wants_another_address_than_the_one_of_the_server_is_refused(home: Home):
    first = LocalServer(home, 0)
    port = first.note.api_url.split(":")[2].removesuffix("/api")
    try:
        with pytest.raises(ServerError, match=f"use `--server-port {port} --host"):
            LocalServer(home, 1, exact=True)
        assert living_server(home) is not None, "who was refused does not end it"
    finally:
        first.stop()


def test_the_last_one_ends_it_and_no_other(home: Home):
    first, second = LocalServer(home, 0), LocalServer(home, 0)
    first.wait_ready()
    first.stop()
    assert answering(second) == second.note.pid
    second.stop()
    assert living_server(home) is None
    with pytest.raises(httpx.ConnectError):
        answering(second)


@pytest.mark.slow
def test_it_outlives_the_kill_of_who_started_it_and_ends_when_all_were_killed(home: Home):
    starter = holder(home)
    other = holder(home)
    note = living_server(home)
    assert note is not None
    starter.kill()
    starter.communicate()
    third = LocalServer(home, 0)
    third.wait_ready()
    assert third.note.pid == note.pid
    third.stop()
    assert living_server(home) == note, "the other one still uses it"
    other.kill()
    other.communicate()
    wait_until("the server ends by itself", lambda: living_server(home) is None)


@pytest.mark.slow
def test_who_comes_while_it_ends_gets_a_new_one(home: Home):
    starter = holder(home)
    before = living_server(home)
    assert before is not None
    starter.kill()
    starter.communicate()
    newcomer = LocalServer(home, 0)
    try:
        newcomer.wait_ready()
        assert answering(newcomer) == newcomer.note.pid
    finally:
        newcomer.stop()


@pytest.mark.slow
def test_one_that_dies_is_started_again_on_its_port_for_all_that_use_it(home: Home, notes: list[str]):
    first, second = LocalServer(home, 0), LocalServer(home, 0)
    with first.kept_alive(), second.kept_alive():
        first.wait_ready()
        before, address = first.note.pid, first.note.api_url
        os.kill(before, signal.SIGKILL)
        wait_until("both have the new one", lambda: before not in (first.note.pid, second.note.pid))
        assert first.note.pid == second.note.pid
        assert first.note.api_url == second.note.api_url == address
        first.wait_ready()
        assert answering(second) == second.note.pid
    assert living_server(home) is None
    assert any(note.startswith("warning: the Prefect server ended with code -9") for note in notes)
    assert all(note.endswith("it is started again, and what runs goes on meanwhile") for note in notes)


@pytest.mark.slow
def test_one_that_dies_again_and_again_is_given_up(
    home: Home, notes: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_RESTARTS", 1)
    server = LocalServer(home, 0)
    with server.kept_alive():
        monkeypatch.setattr(module, "SERVER_MODULE", "tests.no_such_module")
        os.kill(server.note.pid, signal.SIGKILL)
        wait_until("it is given up", lambda: len(notes) == 2)
    assert "after 1 restarts; what runs goes on without it" in notes[1]


@pytest.mark.slow
def test_one_that_asks_for_no_password_is_refused_and_ended(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WITHOUT_PASSWORD", "1")
    server = LocalServer(home, 0)
    with pytest.raises(ServerError, match="answered 200 to a request without a password, and was ended"):
        server.wait_ready()
    assert living_server(home) is None


@pytest.mark.slow
def test_one_that_stays_silent_is_ended(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SILENT", "1")
    monkeypatch.setattr(module, "_START_LIMIT_S", 0.5)
    server = LocalServer(home, 0)
    with pytest.raises(ServerError, match=r"did not answer within 0\.5 s; see .*; the last time, http"):
        server.wait_ready()
    assert living_server(home) is None


def test_it_takes_no_setting_of_prefect_from_a_person(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("PREFECT_SERVER_API_BASE_PATH=/elsewhere\n")
    monkeypatch.setenv("PREFECT_SERVER_API_BASE_PATH", "/elsewhere")
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "sqlite+aiosqlite:////tmp/a-person's.db")
    server = LocalServer(home)
    try:
        process = psutil.Process(server.note.pid)
        assert [name for name in process.environ() if name.startswith("PREFECT_")] == []
        assert Path(process.cwd()) == home.prefect
    finally:
        server.stop()


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_proxy_does_not_keep_it_from_being_reached(
    home: Home, monkeypatch: pytest.MonkeyPatch, variable: str, host: str
):
    monkeypatch.setenv(variable, f"{'http' if variable == 'http_proxy' else 'socks5'}://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    set_environment()
    server = LocalServer(home, 0, host)
    try:
        server.wait_ready()
        # By the environment, as Prefect's clients ask.
        assert httpx.get(f"{server.note.api_url}/admin/version", timeout=60).status_code == 401
    finally:
        server.stop()


def test_a_person_who_waits_for_it_learns_why(home: Home, monkeypatch: pytest.MonkeyPatch, notes: list[str]):
    monkeypatch.setattr(module, "_PATIENCE_S", -1.0)
    server = LocalServer(home, 0)
    server.silence = "its API answered 500"
    answers = iter([False, False, True])
    monkeypatch.setattr(server, "is_ready", lambda: next(answers))
    try:
        server.wait_ready()
    finally:
        server.stop()
    assert ["is not ready yet: its API answered 500" in note for note in notes] == [True]


def test_a_proxy_that_no_client_can_use_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    with pytest.raises(ServerError, match=r"the proxy that ALL_PROXY names .*socks5://HOST:PORT"):
        LocalServer(home)
    assert living_server(home) is None


def test_no_server_starts_without_a_password(home: Home):
    password_file(home).mkdir(parents=True)
    with pytest.raises(ServerError, match="no server starts without one"):
        LocalServer(home, 0, host="0.0.0.0")
    assert not note_file(home).exists()
