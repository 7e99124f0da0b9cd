"""Servers on this machine that judge, or that fail as servers do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], tuple[int, bytes]]

OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def says(status: int, body: Any) -> Answer:
    """An answer that is always the same."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda _: (status, content)


class Judge:
    """A server on this machine; `faults` are its first answers, then it gives the right one."""

    def __init__(self, right: Answer, port: int = 0) -> None:
        self.right = right
        self.faults: list[Answer] = []
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self.keys: set[str | None] = set()
        self.active = self.most_active = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with judge.lock:
                    judge.requests += 1
                    judge.bodies.append(body)
                    judge.paths.add(self.path)
                    judge.keys.add(self.headers.get("authorization"))
                    judge.active += 1
                    judge.most_active = max(judge.most_active, judge.active)
                    answer = judge.faults.pop(0) if judge.faults else judge.right
                status, content = answer(body)
                with judge.lock:
                    judge.active -= 1
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # the client has gone

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def hang(self, _: dict[str, Any]) -> tuple[int, bytes]:
        """An answer that comes when the test is over."""
        self.ended.wait(30)
        return 200, b"{}"

    def close(self) -> None:
        """Let hanging answers end, and the server."""
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


class FaultyServer:
    """A server that reads a request and then passes the open connection to a function."""

    def __init__(self, respond: Callable[[socket.socket, threading.Event], None]) -> None:
        self.requests = 0
        self.ended = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/score"
        self._respond = respond
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.requests += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client has gone
            connection.recv(65536)
            self._respond(connection, self.ended)

    def close(self) -> None:
        """Let the functions end, and the server."""
        self.ended.set()
        self.listener.close()


@contextmanager
def faulty_server(respond: Callable[[socket.socket, threading.Event], None]) -> Iterator[FaultyServer]:
    """A `FaultyServer` for as long as the block."""
    server = FaultyServer(respond)
    try:
        yield server
    finally:
        server.close()


def drips(head: bytes, byte: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Sends a beginning, and then a byte every 20 ms until the server is closed."""

    def respond(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(head)
        while not ended.wait(0.02):
            connection.sendall(byte)

    return respond
