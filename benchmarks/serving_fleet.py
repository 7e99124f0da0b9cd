"""A serving fleet with a diurnal load, simulated: its devices answer requests, unless they are lent.

Requests arrive as a Poisson process whose rate rises and falls once a day, wait in one queue, and take a
device for an exponential time. Time is an argument: a benchmark passes the time of a clock, a test one of its
own, and what happened in between is computed from the same requests in either case. The lender is that of
`examples/lending_server.py`, the real one; requests and devices are no more than numbers.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report import nearest_rank
from examples.lending_server import Lender, LoadForecast


@dataclass(frozen=True)
class ServingRequest:
    """A request, in seconds: when it arrives, and how long it takes a device."""

    arrived_s: float
    service_s: float


@dataclass(frozen=True)
class DiurnalLoad:
    """A load that is least at the beginning of a day and greatest in its middle.

    Attributes:
        day_s: seconds of a day.
        least, most: devices that are busy on average, at these times.
        service_s: mean seconds that a request takes a device.
    """

    day_s: float
    least: float
    most: float
    service_s: float

    def work(self, at_s: float) -> float:
        """Devices that are busy on average at a moment."""
        return self.least + (self.most - self.least) * (1 - math.cos(2 * math.pi * at_s / self.day_s)) / 2

    def requests(self, begin_s: float, until_s: float, seed: int) -> list[ServingRequest]:
        """The requests between two moments, in the order of their arrival; the same ones for the same seed.

        Args:
            begin_s, until_s: the moments; a fleet that served before the time 0 has seen requests by then.
            seed: of the random numbers.
        """
        source, at_s, drawn = random.Random(seed), begin_s, []
        while True:
            # A Poisson process of the greatest rate, thinned (Lewis and Shedler, 1979).
            at_s += source.expovariate(self.most / self.service_s)
            if at_s >= until_s:
                return drawn
            if source.random() * self.most < self.work(at_s):
                drawn.append(ServingRequest(at_s, source.expovariate(1 / self.service_s)))


@dataclass(frozen=True)
class ServingTerms:
    """What the fleet promises, and how it sees to that.

    Attributes:
        objective_s: latency that 95 % of the requests of every window may have at most.
        window_s: seconds of a window.
        utilisation: share of their time that serving devices may be busy.
        lead_s: seconds ahead that it looks: what a device takes from being called back to serving.
        trend_s: seconds of arrivals that its forecast goes by.
        warm_up_s: seconds that a released device takes until it serves, for its weights.
    """

    objective_s: float
    window_s: float
    utilisation: float
    lead_s: float
    trend_s: float
    warm_up_s: float


class ServingFleet:
    """Devices that answer requests in the order of arrival; those that it does not need are lent.

    Args:
        requests: in the order of arrival.
        lender: of its devices. Its clock is that of the times here.
        terms: what it promises.
    """

    def __init__(self, requests: Sequence[ServingRequest], lender: Lender, terms: ServingTerms) -> None:
        self._arriving = deque(requests)
        self._lender = lender
        self._terms = terms
        self._forecast = LoadForecast(terms.trend_s)
        self._queue: deque[ServingRequest] = deque()
        self._idle = set(lender.devices)
        self._lent: set[str] = set()
        self._occupied: list[tuple[float, str]] = []  # until when, by a request or while it loads weights
        self.latencies: list[tuple[float, float]] = []
        """When each request that a device has begun arrived, and its latency, in seconds."""

    def advance(self, to_s: float) -> None:
        """Serve up to a moment; then take back what was released, and lend or call back."""
        self._serve(to_s)
        returned = self._lent - {offer["instance"] for offer in self._lender.offered()}
        self._lent -= returned
        for device in returned:
            heapq.heappush(self._occupied, (to_s + self._terms.warm_up_s, device))
        work = self._forecast.work(to_s, self._terms.lead_s)
        needed = max(1, math.ceil(work / self._terms.utilisation))
        lent = self._lender.set_load(min(needed, len(self._lender.devices)), self._idle)
        self._idle.difference_update(lent)
        self._lent.update(lent)

    def end(self) -> None:
        """Serve what is left in the queue, by the devices that are not lent."""
        self._serve(math.inf)
        assert not self._queue, "no device serves"

    def late_windows(self) -> set[int]:
        """The windows in which more than 5 % of the requests that arrived took longer than the objective."""
        return {number for number, slow_s in self.p95_by_window().items() if slow_s > self._terms.objective_s}

    def p95_by_window(self) -> dict[int, float]:
        """The 95th percentile of the latencies, in seconds, by the number of the window of arrival."""
        windows: dict[int, list[float]] = defaultdict(list)
        for arrived_s, latency_s in self.latencies:
            if arrived_s >= 0:
                windows[int(arrived_s / self._terms.window_s)].append(latency_s)
        return {number: nearest_rank(latencies, 0.95) for number, latencies in windows.items()}

    def _serve(self, to_s: float) -> None:
        while True:
            arrives_s = self._arriving[0].arrived_s if self._arriving else math.inf
            frees_s = self._occupied[0][0] if self._occupied else math.inf
            if min(arrives_s, frees_s) > to_s or math.isinf(min(arrives_s, frees_s)):
                return
            if frees_s <= arrives_s:
                self._idle.add(heapq.heappop(self._occupied)[1])
            else:
                request = self._arriving.popleft()
                self._forecast.add(arrives_s, request.service_s)
                self._queue.append(request)
            if self._queue and self._idle:
                self._begin(self._queue.popleft(), min(arrives_s, frees_s))

    def _begin(self, request: ServingRequest, at_s: float) -> None:
        device = min(self._idle)
        self._idle.remove(device)
        ends_s = at_s + request.service_s
        heapq.heappush(self._occupied, (ends_s, device))
        self.latencies.append((request.arrived_s, ends_s - request.arrived_s))


def idle_device_s(requests: Sequence[ServingRequest], devices: int, until_s: float) -> float:
    """Device-seconds from 0 to a moment in which a fleet that lends nothing has no request to answer.

    Args:
        requests: in the order of arrival.
        devices: of the fleet.
        until_s: when the last request has arrived.
    """
    return devices * until_s - sum(request.service_s for request in requests if request.arrived_s >= 0)


def serve_alone(
    requests: Sequence[ServingRequest], devices: int, terms: ServingTerms, until_s: float
) -> ServingFleet:
    """The same load served by a fleet that lends nothing, up to the last request.

    Args:
        requests: in the order of arrival.
        devices: of the fleet.
        terms: what it promises.
        until_s: when the last request has arrived.
    """
    fleet = ServingFleet(requests, Lender(devices, clock=lambda: until_s), terms)
    fleet.advance(until_s)
    fleet.end()
    return fleet
