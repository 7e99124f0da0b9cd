"""Real workers in local processes, and what the loop that generates needs of a fleet of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from gpu_runtime.cluster.local_cluster import LocalActor, LocalCluster
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.scheduling.requests import WeightsVersion, WorkLeft
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import HistoryPlace
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.worker import DeviceWorker
from storage.clock import process_clock
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.record.records import DeviceState

R = TypeVar("R")

WEIGHTS = WeightsVersion(0)


class ProcessFleet:
    """What the loop that generates needs of a fleet; no worker is replaced."""

    def __init__(self, workers: Sequence[LocalActor[DeviceWorker]], store: ControlStore) -> None:
        self.store = store
        self.actors = {worker.name: worker for worker in workers}
        self._devices = [
            Device(worker, "reserved" if n == 0 else "spot", WEIGHTS) for n, worker in enumerate(workers)
        ]
        self.states: dict[str, list[str]] = {worker.name: [] for worker in workers}
        self.lost: list[str] = []

    def workers(self, version: WeightsVersion) -> list[Device]:
        return list(self._devices)

    def add_ready_workers(self) -> list[Future[Any]]:
        return []

    forming = False

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        return False

    def enter(self, worker: str, state: DeviceState) -> None:
        if self.states[worker][-1:] != [state]:
            self.states[worker].append(state)

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        device.notice = notice

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        self._devices.remove(device)
        self.lost.append(device.name)
        if device.name == "reserved-0":
            raise RuntimeFailure(f"the trainer's process is gone ({error})")

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        device.actor.kill()
        self.on_worker_lost(device, WorkerLostError(reason))


@contextmanager
def process_fleet(
    config: RunConfig, spot: int, history: str | None = None, watches: bool = False
) -> Iterator[ProcessFleet]:
    """A trainer and some spot workers that hold the weights `WEIGHTS`; the latter may watch for notices."""
    place = None if history is None else HistoryPlace(history, process_clock().anchor)
    names = ["reserved-0", *(f"spot-{number}" for number in range(spot))]
    cluster, store = LocalCluster(config), ControlStore()
    try:
        workers = []
        for name in names:
            trains = name == names[0]
            arguments = config, trains, watches and not trains, name, place, None, store.address
            workers.append(cluster.start(name, DeviceWorker, *arguments, gpu=True))
        for worker in workers:
            worker.call(Worker.use_training_weights, WEIGHTS).result(timeout=120)
        yield ProcessFleet(workers, store)
    finally:
        cluster.shutdown()
