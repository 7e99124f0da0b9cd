"""One phase of generating under a virtual clock: the real scheduler, devices that are only times. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from gpu_runtime.scheduling.pull_scheduler import PullScheduler
from gpu_runtime.scheduling.work_items import Lease
from storage.errors import SchedulingError


@dataclass(frozen=True)
class SimulatedDevice:
    """A device that is there for a while.

    Attributes:
        name: unlike any other.
        step_s: seconds that a denoising step of a batch takes it, full or not.
        since_s: when it can pull.
        until_s: when it is lost, without a notice.
    """

    name: str
    step_s: float
    since_s: float = 0.0
    until_s: float = math.inf


class GenerationPhase:
    """Devices pull, commit after some steps, deliver; what a lost one held goes on from its last commit.

    Args:
        scheduler: with the phase's requests, of one policy version.
        devices: all that will be there at some time.
        version: that policy version.
        batch_size: most requests of a lease.
        commit_steps: denoising steps between commits, at least 1.
    """

    def __init__(
        self,
        scheduler: PullScheduler[int],
        devices: Sequence[SimulatedDevice],
        version: int,
        batch_size: int,
        commit_steps: int,
    ) -> None:
        self._scheduler = scheduler
        self._version = version
        self._batch_size = batch_size
        self._commit_steps = commit_steps
        self._number = count()
        self._idle: dict[str, SimulatedDevice] = {}
        self._lost: set[str] = set()
        # (when, serial, device, lease and the step it has reached; None where the device comes or goes)
        self._events: list[tuple[float, int, SimulatedDevice, tuple[Lease[int], int] | None]] = []
        self._under_way: dict[str, tuple[Lease[int], int]] = {}
        for device in devices:
            self._after(device, device.since_s, None)
            if math.isfinite(device.until_s):
                self._after(device, device.until_s, None)

    def run(self) -> float:
        """Seconds until the last request is delivered.

        Raises:
            SchedulingError: if no device is left, nor will come, while requests are.
        """
        now = 0.0
        while not self._scheduler.done():
            if not self._events:
                raise SchedulingError(
                    f"{self._scheduler.unfinished()} requests are left, but no device; let one stay"
                )
            now, _, device, work = heapq.heappop(self._events)
            if work is not None:
                self._advance(device, work, now)
            elif now >= device.until_s:
                self._on_lost(device)
            else:
                self._idle[device.name] = device
            for idle in list(self._idle.values()):
                self._pull(idle, now)
        return now

    def _after(self, device: SimulatedDevice, at_s: float, work: tuple[Lease[int], int] | None) -> None:
        heapq.heappush(self._events, (at_s, next(self._number), device, work))

    def _pull(self, device: SimulatedDevice, now: float) -> None:
        lease = self._scheduler.pull(device.name, now, self._version, self._batch_size)
        if lease is not None:
            del self._idle[device.name]
            self._begin_chunk(device, lease, lease.step, now)

    def _begin_chunk(self, device: SimulatedDevice, lease: Lease[int], step: int, now: float) -> None:
        steps = min(self._commit_steps, lease.steps - step)
        self._under_way[device.name] = lease, step + steps
        self._after(device, now + steps * device.step_s, (lease, step + steps))

    def _advance(self, device: SimulatedDevice, work: tuple[Lease[int], int], now: float) -> None:
        """A chunk has ended, unless its device was lost before."""
        if device.name in self._lost:
            return
        lease, step = work
        if step < lease.steps:
            self._scheduler.commit(lease, dict.fromkeys(lease.requests, (step, step)), now)
            self._begin_chunk(device, lease, step, now)
            return
        self._scheduler.deliver(lease, lease.requests, now)
        del self._under_way[device.name]
        self._idle[device.name] = device

    def _on_lost(self, device: SimulatedDevice) -> None:
        self._lost.add(device.name)
        self._idle.pop(device.name, None)
        lease, step = self._under_way.pop(device.name, (None, 0))
        self._scheduler.on_worker_lost(device.name, dict.fromkeys(lease.requests, step) if lease else None)
