"""A local HTTP server that plays the metadata service of every provider."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


@dataclass
class FakeMetadataService:
    """Answers by path (without the query) from `answers`, 404 elsewhere, and keeps what was asked.

    An answer is a body (status 200), a status, both, or a function of the request's headers that
    gives one of these. `None` hangs until the server closes.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __enter__(self) -> FakeMetadataService:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *raised: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    service: FakeMetadataService


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        service = cast(_Server, self.server).service
        service.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        answer = service.answers.get(f"{self.command} {self.path.partition('?')[0]}", 404)
        if isinstance(answer, Callable):
            answer = answer({k.lower(): v for k, v in self.headers.items()})
        if answer is None:
            service.closing.wait(30)
            return
        status, body = answer if isinstance(answer, tuple) else (answer, "")
        if isinstance(status, str):
            status, body = 200, status
        content = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""
