"""Under which names, and from whose pages, a browser gets to the dashboard."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from ui.own_hosts import OwnHostsOnly


async def _talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("all runs")


_BEHIND = Starlette(
    routes=[Route("/", lambda request: PlainTextResponse("all runs")), WebSocketRoute("/stream", _talk)]
)
_CLIENT = TestClient(OwnHostsOnly(_BEHIND, lambda: ["spotlight.example.org", "*.lab.example.org", ""]))

CASES = [
    ("127.0.0.1:8501", None, True),
    ("localhost:8501", "http://localhost:8501", True),
    ("[::1]:8501", "http://[::1]:8501", True),
    ("LOCALHOST:8501", None, True),
    ("spotlight.example.org", "https://spotlight.example.org", True),
    ("gpu7.lab.example.org:8501", "http://gpu7.lab.example.org:8501", True),
    ("evil.example:8501", None, False),
    ("evil.example:8501", "http://evil.example:8501", False),
    ("127.0.0.1.evil.example", None, False),
    ("evil.example@127.0.0.1:8501", None, False),
    ("127.0.0.1:port", None, False),
    ("", None, False),
    ("127.0.0.1:8501", "http://evil.example", False),
    ("127.0.0.1:8501", "http://127.0.0.1:9999", False),
    ("127.0.0.1:8501", "http://localhost:8501", False),
    ("127.0.0.1:8501", "null", False),
    ("spotlight.example.org", "https://evil.example", False),
]


@pytest.mark.parametrize(("host", "origin", "allowed"), CASES)
def test_names_and_origins(host: str, origin: str | None, allowed: bool):
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    answer = _CLIENT.get("/", headers=headers)
    assert (answer.status_code == 200) is allowed
    assert ("all runs" in answer.text) is allowed
    if allowed:
        with _CLIENT.websocket_connect("/stream", headers=headers) as socket:
            assert socket.receive_text() == "all runs"
    else:
        assert answer.status_code == 403
        with pytest.raises(WebSocketDisconnect), _CLIENT.websocket_connect("/stream", headers=headers):
            pass
