"""Finding, refusing and not finding the Prefect server; none is started here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import flows.progress as progress
from flows import prefect_server as module
from flows.prefect_server import LocalServer, free_port, is_healthy, prefect_server
from storage.errors import ServerError
from storage.home import Home


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_wanted_port_is_taken_where_it_is_free():
    port = closed_port()
    assert free_port(port) == port


def test_another_port_where_the_wanted_one_is_taken(taken_port: int):
    found = free_port(taken_port)
    assert found != taken_port
    assert 1024 <= found <= 65535


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{closed}/api", "nonsense", "http://127.0.0.1:port/api", "ftp://127.0.0.1/api"]
)
def test_nobody_is_healthy_where_nobody_answers(url: str):
    assert not is_healthy(url.format(closed=closed_port()))


def test_a_named_server_that_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"http://127.0.0.1:{closed_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(ServerError) as refused, prefect_server(Home(tmp_path)):
        pass
    assert url in str(refused.value)
    assert "start it, or unset the variable" in str(refused.value)
    assert os.environ["PREFECT_API_URL"] == url
    assert not list(tmp_path.iterdir()), "no server of ours was begun"


def test_a_named_server_that_answers_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://10.0.0.5:4200/api")
    monkeypatch.setattr(module, "is_healthy", lambda url: True)
    with prefect_server(Home(tmp_path)) as ui_url:
        assert ui_url == "http://10.0.0.5:4200"
    assert os.environ["PREFECT_API_URL"] == "http://10.0.0.5:4200/api"


def test_a_server_that_ends_while_starting_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    monkeypatch.delitem(module.sys.modules, "prefect", raising=False)  # another test may have imported it
    message = r"ended with code 1 while starting; see .*prefect-server\.log"
    with pytest.raises(ServerError, match=message), prefect_server(Home(tmp_path / "home")):
        pass
    assert "PREFECT_API_URL" not in os.environ


def test_a_server_that_stays_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(silent))
    monkeypatch.setattr(module, "_START_LIMIT_S", 0.5)
    server = LocalServer(Home(tmp_path / "home"), closed_port())
    with pytest.raises(ServerError, match=r"did not answer within 0\.5 s; see "):
        server.wait_ready()
    assert server._process.poll() is not None


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(progress.reporter(), "note", said.append)
    return said


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
):
    monkeypatch.setattr(module, "_LAUNCHER", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    server = LocalServer(Home(tmp_path / "home"), closed_port())
    with server.kept_alive():
        first = server._process
        first.kill()
        wait_until(lambda: server._process is not first)
        second = server._process
        assert second.poll() is None
    assert second.poll() is not None
    assert [note.split(" (see ")[0] for note in notes] == ["warning: the Prefect server ended with code -9"]
    assert notes[0].endswith("it is started again, and what runs goes on meanwhile")


def test_a_server_that_dies_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
):
    monkeypatch.setattr(module, "_LAUNCHER", "raise SystemExit(3)")
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    monkeypatch.setattr(module, "_RESTARTS", 1)
    server = LocalServer(Home(tmp_path / "home"), closed_port())
    with server.kept_alive():
        wait_until(lambda: len(notes) == 2)
    assert notes[1].endswith("2 times in a row; what runs goes on without it")


def test_a_server_whose_parent_is_gone_is_not_started(tmp_path: Path):
    answer = subprocess.run([sys.executable, "-c", module._LAUNCHER, "1"], capture_output=True, timeout=20)
    assert (answer.returncode, answer.stdout) == (0, b"")
