"""Real workers in local processes, and what the loop that generates needs of a fleet of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from gpu_runtime.cluster.local_cluster import LocalActor, LocalCluster
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.worker.history import HistoryPlace
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.worker import DeviceWorker
from storage.clock import process_clock
from storage.config.run_config import RunConfig
from tests.scripted import FakeFleet

R = TypeVar("R")

WEIGHTS = WeightsVersion(0)


class ProcessFleet(FakeFleet):
    """What the loop that generates needs of a fleet; no worker is replaced."""

    def __init__(self, workers: Sequence[LocalActor[DeviceWorker]], store: ControlStore) -> None:
        super().__init__(
            [Device(worker, "reserved" if n == 0 else "spot", WEIGHTS) for n, worker in enumerate(workers)]
        )
        self.store = store
        self.actors = {worker.name: worker for worker in workers}

    @property
    def lost(self) -> list[str]:
        """Workers whose processes are gone."""
        return [name for name, kind in self.events if kind == "lost"]


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
