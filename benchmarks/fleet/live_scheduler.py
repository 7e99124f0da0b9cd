"""Leases per second of the live coordinator: a run's loop and fleet, over real Ray workers.

The workers' samples cost nothing, so all the time is the coordinator's and Ray's. A round is a pull, a commit
and a delivery of a lease, in two calls of a worker; without the commit, in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, cast

import numpy as np

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.cluster.ray.packing import pack_call
from gpu_runtime.cluster.ray.ray_cluster import RayActor, RayCluster
from gpu_runtime.diffusion.samples import GeneratedSample, SampleState, Trajectory
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.learning.weights import WeightState
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.protocol import SampleChunk, WorkerReady
from storage.clock import process_age_s
from storage.config.run_config import RunConfig

CALLS_A_ROUND = 2
_STEPS = 10
_DIGEST = "digest"
_FEW_BYTES = bytes(320)  # a packed lease of four requests
_SMALL = np.zeros(1, np.float32)
_TRAJECTORY = Trajectory(_SMALL, _SMALL, _SMALL, _SMALL)


class CostlessWorker:
    """Answers like a device, with states and samples of a few bytes, without computing."""

    def __init__(self, *arguments: object) -> None:
        self._requests: list[SampleRequest] = []
        self._step = 0
        self._free_since: float | None = None
        self._waited_s: list[float] = []

    def ready(self) -> WorkerReady:
        """Return the process's age."""
        return WorkerReady(process_age_s())

    def load_weights(self, version: WeightsVersion, state: WeightState) -> str:
        """Return the requested digest."""
        return _DIGEST

    def begin_samples(
        self, version: WeightsVersion, lease: int, work: Sequence[SampleRequest | SampleState], steps: int
    ) -> SampleChunk:
        """Begin samples like a device's worker."""
        if self._free_since is not None:
            self._waited_s.append(time.perf_counter() - self._free_since)
        self._requests = [item.request if isinstance(item, SampleState) else item for item in work]
        self._step = 0
        return self.advance_samples(lease, steps)

    def advance_samples(self, lease: int, steps: int) -> SampleChunk:
        """Advance samples like a device's worker."""
        self._step += steps
        if self._step < _STEPS:
            states = [SampleState(one, self._step, 0, _SMALL, _TRAJECTORY) for one in self._requests]
            return SampleChunk(tuple(states))
        samples = [GeneratedSample(one, _SMALL, _TRAJECTORY, _SMALL) for one in self._requests]
        self._free_since = time.perf_counter()
        return SampleChunk(samples=tuple(samples))

    def echo(self, value: bytes) -> bytes:
        """Return the argument."""
        return value

    def take_waits_s(self) -> list[float]:
        """Return the seconds between each delivery and the next lease, since the last call."""
        taken, self._waited_s = self._waited_s, []
        self._free_since = None
        return taken


class _CostlessCluster(RayCluster):
    """A real cluster with costless workers."""

    def start(self, name: str, build: Callable[..., Any], *args: Any, **options: Any) -> RemoteActor[Any]:
        return super().start(name, CostlessWorker, *args, **options)


@dataclass(frozen=True)
class LiveCost:
    """The cost of one turn.

    Attributes:
        rounds_per_s: leases pulled, committed and delivered per second of wall-clock time.
        waits_s: seconds that a worker waited for each lease, from its delivery to the next.
        driver_s: CPU seconds per lease of the coordinator's process, all threads.
    """

    rounds_per_s: float
    waits_s: list[float]
    driver_s: float


class LiveCoordinator:
    """A fleet of workers whose samples cost nothing.

    With `commits`, each lease is committed once before delivery. A run does so only if its steps are worth
    it, which costless ones never are.
    """

    def __init__(self, workers: int, batch_size: int, commits: bool) -> None:
        steps = _STEPS // CALLS_A_ROUND if commits else _STEPS
        self._config = RunConfig.model_validate(
            {
                "sampling": {"rollout_steps": _STEPS, "batch_size": batch_size},
                "runtime": {"spot_workers": workers - 1, "commit_steps": steps},
            }
        )
        self._cluster = _CostlessCluster(self._config)
        self._fleet = Fleet(self._cluster, self._config)
        self._fleet.await_ready()
        self._turns = 0

    def measure(self, leases: int) -> LiveCost:
        """Let the workers serve so many leases."""
        self._turns += 1
        weights = Weights(WeightsVersion(self._turns), _DIGEST, {})
        self._fleet.prepare(weights)
        self._waits_s()
        size = self._config.sampling.batch_size
        requests = [
            SampleRequest(RequestKind.ROLLOUT, 0, self._turns, number // 16, number % 16, self._turns, "")
            for number in range(leases * size)
        ]
        cpu, began = time.process_time(), time.perf_counter()
        self._fleet.generate(requests, weights)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return LiveCost(leases / seconds, self._waits_s(), cpu / leases)

    def calls_of_ray_alone(self, calls: int) -> float:
        """Return Ray's calls per second with the same workers, without the loop, the fleet and our futures.

        Each takes and returns a few hundred bytes, and every worker has two queued.
        """
        handles = [actor.handle for actor in self._actors()]
        call = pack_call("echo", (_FEW_BYTES,), {})
        ended: SimpleQueue[Any] = SimpleQueue()
        began = time.perf_counter()
        for number in range(calls):
            handle = handles[number % len(handles)] if number < 2 * len(handles) else ended.get()
            done = handle.answer.remote(*call).future()
            done.add_done_callback(lambda _, handle=handle: ended.put(handle))
        for _ in range(2 * len(handles)):
            ended.get()
        return calls / (time.perf_counter() - began)

    def close(self) -> None:
        """End the workers."""
        self._cluster.shutdown()

    def _actors(self) -> list[RayActor[CostlessWorker]]:
        devices = self._fleet.workers(WeightsVersion(self._turns))
        return [cast("RayActor[CostlessWorker]", device.actor) for device in devices]

    def _waits_s(self) -> list[float]:
        calls = [actor.call(CostlessWorker.take_waits_s) for actor in self._actors()]
        return [seconds for call in calls for seconds in call.result()]
