"""A guard before Prefect's web application and the dashboard: it refuses requests from foreign pages.

A browser lets any page send requests to 127.0.0.1, and a page whose name resolves to 127.0.0.1 (DNS
rebinding) even reads the answers. The browser gives the asking page in `Origin`, and the name it used in
`Host`: only requests to this server's names, and only from its own pages, are served.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from storage.text import is_loopback

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_Application = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class ServerGuard:
    """An ASGI application around another, for HTTP and websockets.

    Args:
        host: IPv4 address that the server listens on. If other machines reach it, the machine's name
            and every numeric address are names of it too: rebinding needs a name.
        names: further names of the server, such as a proxy's, whose pages are also its own.
    """

    def __init__(self, application: _Application, host: str, names: Iterable[str] = ()) -> None:
        self._application = application
        self._further = frozenset(name.lower() for name in names)
        self._open = not is_loopback(host)
        machine = {socket.gethostname().lower(), socket.getfqdn().lower()} if self._open else set()
        self._names = {host, "127.0.0.1", "localhost", "::1", *machine, *self._further}

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass on allowed requests; answer 403 to the rest."""
        reason = None if scope["type"] == "lifespan" else self.refusal(scope["headers"])
        if reason is None:
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": f"{reason}\n".encode()})

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return why a request with these headers is refused; None if it is not."""
        given = list(headers)
        hosts = [value.decode("latin-1").lower() for name, value in given if name.lower() == b"host"]
        name = _hostname(f"//{hosts[0]}") if len(hosts) == 1 else None
        if name not in self._names and not (self._open and _is_numeric(name)):
            where = f"to {', '.join(hosts)}" if hosts else "without a Host header"
            return f"requests {where} are refused: allow a name by --allow-host of `spotlight up` or `ui`"
        for origin in (value.decode("latin-1").lower() for key, value in given if key.lower() == b"origin"):
            scheme, _, place = origin.partition("://")
            is_own = place == hosts[0] or _hostname(f"//{place}") in self._further
            if not is_own or scheme not in ("http", "https"):
                return "requests from pages of another origin are refused"
        return None


def _is_numeric(name: str | None) -> bool:
    try:
        ipaddress.ip_address(name or "")
    except ValueError:
        return False
    return True


def _hostname(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises if it is not a number
    except ValueError:
        return None
    return None if parts.username is not None or parts.path else parts.hostname
