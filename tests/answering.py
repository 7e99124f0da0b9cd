"""A server that gives one answer to every question."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def answering(status: int, body: str, login: str = "") -> Iterator[str]:
    """The address of a server that gives one answer, only to those with the login if there is one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            welcome = not login or self.headers.get("Authorization") == login
            self.send_response(status if welcome else 401)
            self.end_headers()
            self.wfile.write(body.encode() if welcome else b"You are not authenticated.\nLog in")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
