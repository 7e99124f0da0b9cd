"""Browsers reach the dashboard under its own names only, from its own pages only."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class OwnHostsOnly:
    """Refuses requests and web sockets under foreign names, and those that foreign pages send.

    A page of a foreign origin may open a web socket to this machine; one whose name was made to lead here
    (DNS rebinding) is of the same origin for the browser. Both would read all runs. Streamlit's
    own check lets pages of any other port of this machine in.

    Args:
        app: what is behind it.
        names: called at each request: the names, or patterns such as `*.example.org`, beside `localhost`.
    """

    def __init__(self, app: ASGIApp, names: Callable[[], list[str]]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        names = [name.strip().lower() for name in self._names() if name.strip()]
        known = any(fnmatchcase(_name(host), pattern) for pattern in (*LOOPBACK_NAMES, *names))
        if known and origin in (None, f"http://{host}", f"https://{host}"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=1008)(scope, receive, send)
        else:
            answer = PlainTextResponse(
                "This dashboard is not known under this name, or another site's page asked for it. To let "
                "browsers use the name, set STREAMLIT_SERVER_ALLOWED_HOSTS=NAME.\n",
                status_code=403,
            )
            await answer(scope, receive, send)


def _name(host: str) -> str:
    """The name in a Host header, without its port; empty where it is no such header."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""
