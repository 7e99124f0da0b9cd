"""A small lender for the provider `lending`: a serving fleet with a load, as a template.

A device that is called back serves again only after seconds: the run asks once a second, its worker ends the
denoising steps under way, and the server loads its own weights. So the fleet plans for the load that it
expects after that time (`LoadForecast`), and the lender keeps `margin` devices above what that needs. When
the load rises, it calls lent devices back, the newest first; a lent device serves again once it has been
released. A run keeps devices until it gives them back: a fleet that cannot wait must end the run's processes.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass
class Loan:
    """A device that is lent, or was; seconds of the lender's clock.

    Attributes:
        device: its name.
        lent_s: since when.
        called_back_s: when it was called back; None where it was not.
        returned_s: when the run released it; None as long as it is lent.
        why: it was called back, in words.
    """

    device: str
    lent_s: float
    called_back_s: float | None = None
    returned_s: float | None = None
    why: str = ""


class LoadForecast:
    """How many devices' worth of work arrives, by the trend of the last seconds.

    A load that falls is expected to stay as it is: devices are then lent a little later.

    Args:
        window_s: seconds that count. The later half of them is compared with the half before.
    """

    def __init__(self, window_s: float) -> None:
        self._half_s = window_s / 2
        self._arrived: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, work_s: float) -> None:
        """A request has arrived that takes a device so many seconds."""
        self._arrived.append((at_s, work_s))

    def work(self, now_s: float, ahead_s: float) -> float:
        """Devices that will be busy.

        Args:
            now_s: the present moment.
            ahead_s: how many seconds after it.
        """
        while self._arrived and self._arrived[0][0] <= now_s - 2 * self._half_s:
            self._arrived.popleft()
        middle_s = now_s - self._half_s
        late = sum(work_s for at_s, work_s in self._arrived if at_s > middle_s) / self._half_s
        early = sum(work_s for at_s, work_s in self._arrived if at_s <= middle_s) / self._half_s
        slope = max(0.0, (late - early) / self._half_s)
        return late + slope * (ahead_s + self._half_s / 2)


class Lender:
    """Which devices serve and which are lent. Threads may share it.

    Args:
        devices: of the fleet.
        margin: devices beyond its need that it never lends.
        hold_s: seconds for which the load must have left room before it lends: a device that has just come
            back is not lent for a moment's calm.
        clock: seconds, of a clock that never goes back.
    """

    def __init__(
        self,
        devices: int,
        margin: int = 1,
        hold_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self.devices = tuple(f"gpu-{number}" for number in range(devices))
        self._margin = margin
        self._hold_s = hold_s
        self._clock = clock
        self._needs: deque[tuple[float, int]] = deque()  # what was needed when, in the last `hold_s`
        self._wanted = 0
        self._lent: dict[str, Loan] = {}  # by device, in the order of lending
        self.loans: list[Loan] = []
        """All there ever were, in the order of lending."""

    def set_load(self, devices: int, idle: Collection[str]) -> list[str]:
        """Lend what the load does not need, as far as it is wanted; call back what it does.

        Args:
            devices: that it will need by the time that one called back now would serve again.
            idle: those that have no request now; only these are lent.

        Returns:
            The devices that are lent since: they get no request any more.
        """
        with self._lock:
            now_s = self._clock()
            self._needs.append((now_s, devices))
            while self._needs[0][0] < now_s - self._hold_s:
                self._needs.popleft()
            staying = [loan for loan in self._lent.values() if loan.called_back_s is None]
            for loan in staying[self._room(devices) :]:  # the newest
                loan.called_back_s = now_s
                loan.why = f"serving needs {devices} of {len(self.devices)} devices"
            most = min(self._wanted, self._room(max(need for _, need in self._needs)))
            free = [name for name in self.devices if name in idle and name not in self._lent]
            lent = free[: max(0, most - len(self._lent))]
            for name in lent:
                self._lent[name] = Loan(name, now_s)
                self.loans.append(self._lent[name])
            return lent

    def wanted(self, devices: int) -> None:
        """A run could use so many devices; `set_load` lends them."""
        with self._lock:
            self._wanted = devices

    def offered(self) -> list[dict[str, Any]]:
        """What is lent."""
        with self._lock:
            return [{"instance": name, "called_back": loan.why} for name, loan in self._lent.items()]

    def release(self, instance: str) -> None:
        """A run has given a device back."""
        with self._lock:
            loan = self._lent.pop(instance, None)
            if loan is not None:
                loan.returned_s = self._clock()

    def _room(self, needed: int) -> int:
        """How many devices may be lent where so many are needed."""
        return max(0, len(self.devices) - needed - self._margin)


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
