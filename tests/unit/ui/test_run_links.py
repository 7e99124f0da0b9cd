"""Where a run's links lead, and what is said where they would lead nowhere."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from storage.home import Home
from storage.readers.mlflow_reader import mlflow_identity
from tests.running_up import free_port
from ui.data.links import is_prefect, mlflow_link, prefect_link
from ui.server.early import EarlyScripts, _addresses

HERE = "http://127.0.0.1:4200/v2/runs/flow-run/1"
THERE = "https://prefect.example.org/v2/runs/flow-run/1"


def test_a_server_that_answers_is_linked_to():
    assert prefect_link(HERE, "", lambda address: True).address == HERE


def test_the_server_that_the_dashboard_was_given_comes_first():
    found = prefect_link(HERE, "http://127.0.0.1:4300/api", lambda address: True)
    assert found.address == "http://127.0.0.1:4300/v2/runs/flow-run/1"
    assert prefect_link(THERE, "http://127.0.0.1:4300/api", lambda address: True).address == THERE


def test_a_server_that_is_gone_is_not_linked_to():
    found = prefect_link(HERE, "", lambda address: False)
    assert found.address == ""
    assert found.command == "spotlight up"
    assert "/v2/runs/flow-run/1" in found.how


@pytest.mark.parametrize(
    "recorded", ["", "javascript:alert(1)", "file:///etc/passwd", "http://", "http://[::1"]
)
def test_no_page_is_no_link(recorded: str):
    found = prefect_link(recorded, "", lambda address: True)
    assert (found.address, found.command) == ("", "")


def test_only_this_machine_is_asked_whether_a_prefect_server_answers():
    assert not is_prefect(f"http://127.0.0.1:{free_port()}/v2/runs/flow-run/1")
    assert is_prefect(THERE)


@pytest.mark.parametrize(
    ("status", "body", "answers"), [(200, b"true", True), (200, b"<html>", False), (404, b"true", False)]
)
def test_a_server_that_took_over_the_port_is_not_linked_to(status: int, body: bytes, answers: bool):
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert is_prefect(f"http://127.0.0.1:{server.server_port}/v2/runs/flow-run/1") is answers
    assert asked == ["/api/health"]


def test_mlflow_s_run_is_found_by_its_tag(tmp_path: Path):
    home = Home(tmp_path)
    assert mlflow_identity(home, "r") is None
    with sqlite3.connect(tmp_path / "mlflow.db") as file:
        file.executescript(
            "CREATE TABLE runs (run_uuid, experiment_id); CREATE TABLE tags (run_uuid, key, value);"
            "INSERT INTO runs VALUES ('abc', 1); INSERT INTO tags VALUES ('abc', 'spotlight.run_id', 'r');"
        )
    assert mlflow_identity(home, "r") == ("1", "abc")
    assert mlflow_identity(home, "other") is None
    found = mlflow_link(home, "r", ("1", "abc"), "")
    assert found.address == ""
    assert "#/experiments/1/runs/abc?workflowType=machine_learning" in found.how
    assert f"sqlite:///{tmp_path}/mlflow.db" in found.command


def test_a_server_of_one_s_own_is_linked_to(tmp_path: Path):
    found = mlflow_link(Home(tmp_path), "r", None, "https://mlflow.example.org/")
    assert found.address == "https://mlflow.example.org/#/experiments?workflowType=machine_learning"
    assert "`r`" in found.how
    assert mlflow_link(Home(tmp_path), "r", None, "javascript:x").address == ""


async def _answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def headers_of(path: str) -> list[tuple[bytes, bytes]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    asyncio.run(EarlyScripts(_answers)({"type": "http", "path": path}, receive, send))
    return sent[0]["headers"]


def test_only_pages_name_scripts_and_other_addresses_are_not_remembered():
    assert any(b"PlotlyChart" in value for _, value in headers_of("/seeds"))
    remembered = _addresses.cache_info().currsize
    assert [headers_of(f"/media/{number}.png") for number in range(3)] == [[], [], []]
    assert _addresses.cache_info().currsize == remembered
