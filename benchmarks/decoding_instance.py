"""An instance that decodes many requests of a language model at once; for streamed_run.py."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from benchmarks.language_workload import LanguageWorkload
from gpu_runtime.scheduling.work_items import Lease
from gpu_runtime.simulator.devices import SimulatedDevice
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, Event

_SAME = 1e-6
"""Tokens; below it, rounding to ticks."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request on an instance.

    Attributes:
        lease: of it.
        ends: token count of the instance at which it is finished.
    """

    lease: Lease[int]
    ends: float


class DecodingInstance:
    """An instance that decodes many requests, a token of each in a step."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.running: dict[int, RunningRequest] = {}
        self.reached = 0.0  # tokens that each request would have, had it run from the beginning
        self.event: Event | None = None
        self.serves = False
        self._ends: list[tuple[float, int, RunningRequest]] = []
        self._since = 0

    def advance(self, now: int, workload: LanguageWorkload) -> None:
        """Count the tokens up to now; before any change of what runs."""
        if self.running:
            step = TICKS_PER_S * (workload.token_s + workload.row_s * len(self.running))
            self.reached += (now - self._since) / step
        self._since = now

    def begin(self, lease: Lease[int], tokens: float) -> None:
        """Run a request that needs so many more tokens."""
        request = lease.requests[0]
        running = RunningRequest(lease, self.reached + tokens)
        self.running[request] = running
        heapq.heappush(self._ends, (running.ends, request, running))

    def next_end(self) -> float | None:
        """Token count at which the next request is finished."""
        while self._ends and self.running.get(self._ends[0][1]) is not self._ends[0][2]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def take_finished(self) -> list[Lease[int]]:
        """The requests that have all their tokens; they run no more."""
        finished: list[Lease[int]] = []
        while (ends := self.next_end()) is not None and ends <= self.reached + _SAME:
            finished.append(self.running.pop(heapq.heappop(self._ends)[1]).lease)
        return finished

    def longest(self, count: int) -> list[int]:
        """The requests with most tokens left."""
        return heapq.nlargest(count, self.running, key=lambda request: (self.running[request].ends, request))

    def done_of(self, running: RunningRequest) -> int:
        """Whole tokens that a request has."""
        left = max(0.0, running.ends - self.reached)
        return max(running.lease.step, min(running.lease.steps - 1, int(running.lease.steps - left)))
