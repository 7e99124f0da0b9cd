"""Finding, refusing and not finding the Prefect server; none is started here."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from flows.server import prefect_server as module
from flows.server.prefect_server import is_healthy, prefect_server
from storage.errors import ServerError
from storage.home import Home


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "a person's own")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.delitem(sys.modules, "prefect", raising=False)  # another test may have imported it
    message = r"ended with code 1 while starting; see .*prefect-server\.log"
    with pytest.raises(ServerError, match=message), prefect_server(Home(tmp_path / "home")):
        pass
    assert "PREFECT_API_URL" not in os.environ
    assert os.environ["PREFECT_API_AUTH_STRING"] == "a person's own"
