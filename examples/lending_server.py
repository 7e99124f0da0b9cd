"""A small lender of the form that the provider `lending` asks: a serving fleet with a load, as a guide.

It keeps `margin` devices above what its load needs. When the load rises, it takes free devices first, then
calls lent ones back, the newest first; a lent device serves again once it has been released.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class Lender:
    """Which devices serve, which are free and which are lent. Threads may share it.

    Args:
        devices: of the fleet.
        margin: devices beyond its need that it never lends.
    """

    def __init__(self, devices: int, margin: int = 1) -> None:
        self._lock = threading.Lock()
        self._devices = [f"gpu-{number}" for number in range(devices)]
        self._margin = margin
        self._needed = devices
        self._wanted = 0
        self._lent: dict[str, str] = {}  # why it is called back, by device, in the order of lending
        self.short = 0
        """Times that the load needed more devices than served: violations of the fleet's objective."""
        self.used = 0
        """Changes of the load during which at least one device was lent."""

    def set_load(self, devices: int) -> None:
        """The load needs so many devices from now on."""
        with self._lock:
            self._needed = devices
            self._balance()
            self.short += len(self._devices) - len(self._lent) < devices
            self.used += bool(self._lent)

    def wanted(self, devices: int) -> None:
        """A run could use so many devices."""
        with self._lock:
            self._wanted = devices
            self._balance()

    def offered(self) -> list[dict[str, Any]]:
        """What is lent."""
        with self._lock:
            return [{"instance": name, "called_back": why} for name, why in self._lent.items()]

    def release(self, instance: str) -> None:
        """A run has given a device back."""
        with self._lock:
            self._lent.pop(instance, None)
            self._balance()

    def _balance(self) -> None:
        """Lend what is not needed, as far as it is wanted; call back what is. The caller holds the lock."""
        most = max(0, len(self._devices) - self._needed - self._margin)
        for name in [name for name in self._devices if name not in self._lent]:
            if len(self._lent) >= min(most, self._wanted):
                break
            self._lent[name] = ""
        for name in reversed(list(self._lent)):
            staying = sum(not why for why in self._lent.values())
            if staying > most and not self._lent[name]:
                self._lent[name] = f"serving needs {self._needed} of {len(self._devices)} devices"


class LendingServer:
    """Serves a lender on a free port of this machine, within a context.

    Args:
        lender: what is asked.
    """

    def __init__(self, lender: Lender) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200 if self.path == "/offered" else 404, {"instances": lender.offered()})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/wanted":
                    lender.wanted(int(asked["devices"]))
                elif self.path == "/release":
                    lender.release(str(asked["instance"]))
                else:
                    self._answer(404, {})
                    return
                self._answer(200, {})

            def _answer(self, status: int, values: dict[str, Any]) -> None:
                body = json.dumps(values).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="lender", daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LendingServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
