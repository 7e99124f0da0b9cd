"""The devices of a run: starting them, giving them weights, letting them pull requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait
from dataclasses import dataclass
from typing import Any

from gpu_runtime.actors.cluster import Cluster, RemoteActor
from gpu_runtime.diffusion.sampler import GeneratedSample
from gpu_runtime.scheduling.pull_queue import Lease, PullQueue
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.scheduling.timeline import Timeline
from gpu_runtime.worker import DeviceWorker
from storage.config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError
from storage.records import DeviceEvent, DeviceEventKind, DeviceState, Market, StateInterval


@dataclass
class Device:
    """A worker of the fleet and the name of the weights it holds."""

    actor: RemoteActor
    market: Market
    holds: str = ""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.actor.name


@dataclass(frozen=True)
class Weights:
    """Published weights: their name, their digest and a reference to them in the object store."""

    key: str
    digest: str
    reference: Any


@dataclass(frozen=True)
class Delivered:
    """A finished sample and who finished it."""

    sample: GeneratedSample
    worker: str


class Fleet:
    """Reserved and spot workers behind one pull queue.

    The first reserved worker is the trainer. When a spot or further reserved worker dies, the
    requests it held go back to the queue, and a replacement starts with the next phase; it pulls
    from the first phase that finds it loaded.

    Beside training, a second thread drafts: the training thread then touches the trainer alone, the
    drafting one the other devices (`drafters`, `lose`). A lock guards what both write: the time
    line, the events and the list of devices.
    """

    def __init__(self, cluster: Cluster, config: RunConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._timeline = Timeline()
        self._lock = threading.Lock()
        self._generation: dict[str, int] = {}
        self.lost: list[str] = []
        """Names of workers that died, in order."""
        self.samples_returned = 0
        """Samples that a lost worker held and another did again."""
        self.samples_dropped = 0
        """Samples that arrived a second time."""
        self._devices: list[Device] = []
        self._events: list[DeviceEvent] = []
        self._starting = [self._start(market, index) for market, index in self._slots()]
        self.trainer = self._starting[0][0]

    def await_ready(self) -> None:
        """Wait until every worker has loaded its model.

        Raises:
            RuntimeFailure: if one dies or takes longer than runtime.start_timeout_s.
        """
        limit = self._config.runtime.start_timeout_s
        deadline = time.monotonic() + limit
        for device, loaded in self._starting:
            try:
                self._admit(device, loaded.result(timeout=max(0.0, deadline - time.monotonic())))
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"worker {device.name} did not start in runtime.start_timeout_s={limit:g}: the cluster "
                    f"has {self._cluster.describe()} for {len(self._starting)} workers and "
                    f"{self._config.runtime.scorer_workers} scorers; add machines or lower the numbers"
                ) from error
            except WorkerLostError as error:
                raise RuntimeFailure(f"worker {device.name} died while starting: {error}") from error
        self._starting = []

    def enter(self, worker: str, state: DeviceState) -> None:
        """Book what a device does from now on."""
        with self._lock:
            self._timeline.enter(worker, state, time.time())

    def take_intervals(self) -> list[StateInterval]:
        """What each device did since the last call."""
        with self._lock:
            return self._timeline.take(time.time())

    def take_device_events(self) -> list[DeviceEvent]:
        """Which devices joined and which were lost since the last call, in order."""
        with self._lock:
            taken, self._events = self._events, []
        return taken

    def generate(self, requests: Sequence[SampleRequest], weights: Weights) -> list[Delivered]:
        """All requests with these weights, each exactly once, in the order of `requests`.

        Raises:
            RuntimeFailure: if the trainer died, or a worker holds other weights after loading them.
        """
        self.prepare(weights)
        queue: PullQueue[SampleRequest] = PullQueue(requests, self._config.sampling.batch_size)
        results: dict[SampleRequest, Delivered] = {}
        busy: dict[Future[list[GeneratedSample]], tuple[Device, Lease[SampleRequest]]] = {}
        self._feed(queue, weights, busy)
        while not queue.done:
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                device, lease = busy.pop(future)
                try:
                    samples = future.result()
                except WorkerLostError as error:
                    queue.give_back(device.name)
                    self.lose(device, error)
                    continue
                accepted = set(queue.deliver(lease))
                results |= {s.request: Delivered(s, device.name) for s in samples if s.request in accepted}
            self._feed(queue, weights, busy)
        self.samples_returned += queue.returned
        self.samples_dropped += queue.duplicates
        for device in self._devices:
            self.enter(device.name, "idle")
        return [results[request] for request in requests]

    def prepare(self, weights: Weights) -> None:
        """Replace what is lost, and make every worker hold these weights."""
        self._replace_lost()
        self.hold(weights)

    def drafters(self, key: str, with_trainer: bool) -> list[Device]:
        """The devices that hold the weights called `key` now; the trainer only if it may draft."""
        with self._lock:
            return [
                device
                for device in self._devices
                if device.holds == key and (with_trainer or device is not self.trainer)
            ]

    def lose(self, device: Device, error: WorkerLostError) -> None:
        """A worker has died; its replacement starts with the next phase.

        Raises:
            RuntimeFailure: if it is the trainer.
        """
        if device is self.trainer:
            raise _trainer_gone(error) from error
        with self._lock:
            self._devices.remove(device)
            self.lost.append(device.name)
            now = time.time()
            self._timeline.remove(device.name, now)
            self._book(device, "lost", now, str(error))

    def hold(self, weights: Weights) -> dict[str, str]:
        """Make every worker hold these weights; the digest each one loaded, by worker."""
        loading: dict[str, Future[str]] = {}
        for device in self._devices:
            if device.holds != weights.key:
                self.enter(device.name, "load")
                loading[device.name] = device.actor.call("load_weights", weights.key, weights.reference)
        digests: dict[str, str] = {}
        for device in list(self._devices):
            if device.name not in loading:
                continue
            try:
                digests[device.name] = loading[device.name].result()
            except WorkerLostError as error:
                self.lose(device, error)
                continue
            device.holds = weights.key
            if digests[device.name] != weights.digest:
                raise RuntimeFailure(
                    f"worker {device.name} holds weights with checksum {digests[device.name]} after loading "
                    f"{weights.key!r}, whose checksum is {weights.digest}; resume the run"
                )
        return digests

    def forget_weights(self) -> None:
        """The names of weights have a new meaning: workers load them again."""
        for device in self._devices:
            device.holds = ""

    def ask_trainer(self, method: str, *args: Any) -> Any:
        """Call the trainer and wait.

        Raises:
            RuntimeFailure: if its process is gone.
        """
        try:
            return self.trainer.actor.call(method, *args).result()
        except WorkerLostError as error:
            raise _trainer_gone(error) from error

    def _feed(
        self,
        queue: PullQueue[SampleRequest],
        weights: Weights,
        busy: dict[Future[list[GeneratedSample]], tuple[Device, Lease[SampleRequest]]],
    ) -> None:
        """Let every free worker pull."""
        working = {device.name for device, _ in busy.values()}
        for device in self._devices:
            if device.name in working:
                continue
            lease = queue.pull(device.name)
            self.enter(device.name, "rollout" if lease else "idle")
            if lease:
                busy[device.actor.call("generate", weights.key, lease.requests)] = (device, lease)

    def _start(self, market: Market, index: int) -> tuple[Device, Future[float]]:
        """Start a worker; the future says since when its process lives, once it has loaded."""
        slot = f"{market}-{index}"
        generation = self._generation[slot] = self._generation.get(slot, -1) + 1
        name = f"{slot}.{generation}" if generation else slot
        trains = market == "reserved" and index == 0
        device = Device(self._cluster.start(name, DeviceWorker, self._config, trains, gpu=True), market)
        return device, device.actor.call("ready")

    def _admit(self, device: Device, alive_since: float) -> None:
        """A worker has loaded: from now on it pulls, and its loading is on the bill."""
        price = self._config.price
        usd = price.reserved_usd_per_hour if device.market == "reserved" else price.spot_usd_per_hour
        with self._lock:
            self._timeline.add(device.name, device.market, usd, alive_since)
            self._timeline.enter(device.name, "idle", time.time())
            self._devices.append(device)
            self._book(device, "joined", alive_since)

    def _book(self, device: Device, kind: DeviceEventKind, at: float, detail: str = "") -> None:
        """Note what happened to a device; the caller holds the lock."""
        self._events.append(DeviceEvent(device.name, device.market, kind, at, detail))

    def _replace_lost(self) -> None:
        """Start workers where some are missing, and take in those that have loaded meanwhile.

        Nobody waits for them: on a cluster without a free place a replacement loads when there is one.
        """
        waiting: list[tuple[Device, Future[float]]] = []
        for device, loaded in self._starting:
            if not loaded.done():
                waiting.append((device, loaded))
            elif loaded.exception() is None:
                self._admit(device, loaded.result())
            else:
                self.lost.append(device.name)
                with self._lock:
                    self._book(device, "lost", time.time(), f"while loading: {loaded.exception()}")
        there = self._devices + [device for device, _ in waiting]
        filled = {device.name.split(".")[0] for device in there}
        missing = [slot for slot in self._slots() if f"{slot[0]}-{slot[1]}" not in filled]
        self._starting = waiting + [self._start(market, index) for market, index in missing]

    def _slots(self) -> list[tuple[Market, int]]:
        """The places to fill: market and number within it, the trainer's first."""
        runtime = self._config.runtime
        counts: tuple[tuple[Market, int], ...] = (
            ("reserved", runtime.reserved_workers),
            ("spot", runtime.spot_workers),
        )
        return [(market, index) for market, count in counts for index in range(count)]


def _trainer_gone(error: WorkerLostError) -> RuntimeFailure:
    return RuntimeFailure(
        f"the trainer's process is gone ({error}); nothing committed is lost: go on with "
        "`spotlight resume RUN`"
    )
