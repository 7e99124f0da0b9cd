"""A local HTTP server that simulates a provider's metadata service: for tests, and for `spotlight chaos`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from gpu_runtime.spot.notices.gcp import PREEMPTED_PATH


@dataclass
class SimulatedService:
    """Answers by path (without the query) from `answers`, and keeps the requests.

    An answer is a body (status 200), a status, both, or a function of the request's headers that
    returns one of these. `None` hangs until the server closes.

    Attributes:
        answers: answers by method and path, such as `GET /latest/api/token`.
        otherwise: the answer for any other path.
        asked: method, path and headers of each request.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    otherwise: Any = 404
    asked: MutableSequence[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __enter__(self) -> SimulatedService:
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
        """Return the paths requested, in order."""
        return [path for _, path, _ in self.asked]


class SimulatedNotices(SimulatedService):
    """Google's preempted flag, simulated for each worker; the workers ask `url`.

    Attributes:
        url: URL for a run's `runtime.notices`: "gcp@URL".
    """

    def __init__(self, worker_in_url: str) -> None:
        # Hours of polls would fill the memory: no request is kept.
        super().__init__(otherwise="FALSE", asked=deque(maxlen=0))
        self._worker_in_url = worker_in_url

    def __enter__(self) -> SimulatedNotices:
        super().__enter__()
        self.url += f"/{self._worker_in_url}"
        return self

    def warn(self, worker: str) -> None:
        """Announce from now on that a worker's machine will be taken."""
        self.answers[f"GET /{worker}{PREEMPTED_PATH}"] = "TRUE"

    def withdraw(self, worker: str) -> None:
        """Withdraw a worker's notice."""
        self.answers.pop(f"GET /{worker}{PREEMPTED_PATH}", None)


class _Server(ThreadingHTTPServer):
    service: SimulatedService


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        service = cast(_Server, self.server).service
        service.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        answer = service.answers.get(f"{self.command} {self.path.partition('?')[0]}", service.otherwise)
        if isinstance(answer, Callable):
            answer = answer({k.lower(): v for k, v in self.headers.items()})
        if answer is None:
            service.closing.wait(30)
            return
        status, body = answer if isinstance(answer, tuple) else (answer, "")
        if isinstance(status, str):
            status, body = 200, status
        content = body if isinstance(body, bytes) else body.encode()
        with suppress(ConnectionError):  # the client may have been killed meanwhile
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, to keep the output clean."""
