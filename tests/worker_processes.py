"""Workers in processes of their own, called through pipes: the real ones, without Ray."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.devices import Device
from gpu_runtime.history_log import HistoryPlace
from gpu_runtime.sequence_parallel.phase_end import WorkLeft
from gpu_runtime.spot.notice import Notice
from gpu_runtime.worker import DeviceWorker
from gpu_runtime.worker_protocol import Worker
from storage.clock import process_clock
from storage.config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.records import DeviceState

R = TypeVar("R")

KEY = "v0"
_PROCESSES = multiprocessing.get_context("forkserver")


def _obey(
    link: Connection,
    config: RunConfig,
    name: str,
    trains: bool,
    watches: bool,
    history: HistoryPlace | None,
) -> None:
    worker = DeviceWorker(config, trains, watches, name=name, history=history)
    while True:
        try:
            method, args = link.recv()
        except EOFError:
            return
        try:
            link.send((getattr(worker, method)(*args), None))
        except Exception as error:  # noqa: BLE001 - told to the caller, whatever it is
            link.send((None, error))


class WorkerProcess(RemoteActor[Worker]):
    """A worker's process, as an actor."""

    def __init__(
        self, name: str, config: RunConfig, trains: bool, watches: bool, history: str | None
    ) -> None:
        super().__init__(name)
        place = None if history is None else HistoryPlace(history, process_clock().anchor)
        self._link, there = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(
            target=_obey, args=(there, config, name, trains, watches, place), daemon=True
        )
        self.process.start()
        there.close()
        self._lock = threading.Lock()
        self._waiting: deque[Future[Any]] = deque()
        self._gone = False

    def listen(self) -> None:
        """Hear the answers from now on, in a thread."""
        threading.Thread(target=self._hear, daemon=True).start()

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """As of an actor."""
        call: Future[R] = Future()
        with self._lock:
            gone = self._gone
            if not gone:
                self._waiting.append(call)
                with suppress(OSError):  # the other end is closed: the thread that hears will say so
                    self._link.send((method.__name__, args))
        if gone:
            call.set_exception(WorkerLostError(f"worker {self.name} is gone"))
        return call

    def kill(self) -> None:
        """As of an actor."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Strike the process."""
        if self.process.pid is not None:
            with suppress(ProcessLookupError):  # gone, and the fork server has taken note
                os.kill(self.process.pid, number)

    def _hear(self) -> None:
        while True:
            try:
                value, error = self._link.recv()
            except (EOFError, OSError):
                break
            call = self._waiting.popleft()
            if error is None:
                call.set_result(value)
            else:
                call.set_exception(error)
        with self._lock:
            self._gone = True
        while self._waiting:
            self._waiting.popleft().set_exception(WorkerLostError(f"worker {self.name} is gone"))


class ProcessFleet:
    """What the loop that generates needs of a fleet; nobody is replaced."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.actors = {worker.name: worker for worker in workers}
        self._devices = [
            Device(worker, "reserved" if n == 0 else "spot", KEY) for n, worker in enumerate(workers)
        ]
        self.states: dict[str, list[str]] = {worker.name: [] for worker in workers}
        self.lost: list[str] = []

    def workers(self, key: str) -> list[Device]:
        """As of the fleet."""
        return list(self._devices)

    def welcome(self) -> list[Future[Any]]:
        """As of the fleet."""
        return []

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """As of the fleet."""
        return False

    def enter(self, worker: str, state: DeviceState) -> None:
        """As of the fleet."""
        if self.states[worker][-1:] != [state]:
            self.states[worker].append(state)

    def heed(self, device: Device, notice: Notice | None) -> None:
        """As of the fleet."""
        device.notice = notice

    def lose(self, device: Device, error: WorkerLostError) -> None:
        """As of the fleet."""
        self._devices.remove(device)
        self.lost.append(device.name)
        if device.name == "reserved-0":
            raise RuntimeFailure(f"the trainer's process is gone ({error})")

    def give_up(self, device: Device, reason: str) -> None:
        """As of the fleet."""
        device.actor.kill()
        self.lose(device, WorkerLostError(reason))


@contextmanager
def process_fleet(
    config: RunConfig, spot: int, history: str | None = None, watches: bool = False
) -> Iterator[ProcessFleet]:
    """A trainer and some spot workers that hold the weights `KEY`; the latter may watch for notices."""
    _PROCESSES.set_forkserver_preload(["gpu_runtime.worker"])  # imports take seconds, once for all
    names = ["reserved-0", *(f"spot-{number}" for number in range(spot))]
    workers = [
        WorkerProcess(name, config, name == "reserved-0", watches and name != "reserved-0", history)
        for name in names
    ]
    try:
        for worker in workers:
            worker.listen()
        for worker in workers:
            worker.call(Worker.own_weights, KEY).result(timeout=120)
        yield ProcessFleet(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.process.join()
