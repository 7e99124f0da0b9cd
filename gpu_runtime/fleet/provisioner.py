"""Workers on their way into the fleet, and standbys: a free slot gets a waiting standby or a new process.

A standby is a worker process without a slot that has imported everything and loaded its model. It takes a
lost worker's slot within milliseconds; a new process needs seconds. It holds no device and is not billed, but
its use of the host is recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, TimeoutError, wait
from contextlib import nullcontext
from dataclasses import dataclass

from gpu_runtime.cluster.protocol import Cluster, RemoteActor
from gpu_runtime.cluster.slots import FailedStart, free_slots, pause, worker_counts
from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet.rented_capacity import RentedCapacity
from gpu_runtime.sequence_parallel.control_store import StoreAddress
from gpu_runtime.worker import device_worker
from gpu_runtime.worker.history import HistoryLog
from gpu_runtime.worker.protocol import HostUsage, TrainingMembership, Worker, WorkerReady
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure, SpotlightError, WorkerLostError
from storage.record.records import DeviceEventKind, Market, StandbyEnd, StandbyTime

_COUNT_EVERY_S = 1.0
"""Seconds between two counts of the cluster's devices."""

Arrival = tuple[Device, "Future[WorkerReady]"]
"""A worker, and its answer once it has loaded."""


@dataclass(eq=False)
class Standby:
    """A process that waits for a slot.

    Attributes:
        since_s: end of its recorded time (monotonic seconds); initially, when it was requested.
        reading: call that returns its usage; the first one ends when it has loaded.
        usage: last answer; None before it has loaded.
        recorded_cpu_s: CPU time already recorded.
    """

    name: str
    actor: RemoteActor[Worker]
    since_s: float
    reading: Future[HostUsage]
    usage: HostUsage | None = None
    recorded_cpu_s: float = 0.0


class Standbys:
    """The `runtime.standby_workers` standbys of a run. Thread-safe.

    If instances state their market, standbys wait on reserved ones and replace only reserved workers,
    because a lost spot worker's instance is gone with it.

    Args:
        meeting: address of the driver's store, where workers meet; None if none do.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: RunConfig,
        history: HistoryLog,
        collector: Collector,
        meeting: StoreAddress | None = None,
    ) -> None:
        self._meeting = meeting
        self._cluster = cluster
        self._config = config
        self._history = history
        self._lock = threading.RLock()
        self._waiting: list[Standby] = []
        # Requesting a process from a cluster takes up to 0.1 s, during which no device would get work.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="standby")
        self._starting: dict[Future[Standby], str] = {}
        self._taken: dict[str, bool] = {}
        self._started = 0
        self._phase = 0
        self._failures = 0
        self._not_before = 0
        self._collector = collector
        collector.book_at_close(self._book_waiting)
        self.lost: list[str] = []
        """Reports of the standbys that died, in order, as text."""

    def begin_phase(self) -> None:
        """Find those that died since the last phase, and start missing ones in the background."""
        with self._lock:
            self._phase += 1
            self._look()
            self._ask_again()
            self.fill()

    def fill(self) -> None:
        """Start missing standbys in the background; call it when no worker is on its way.

        Otherwise the worker would start more slowly. A standby that dies while loading is retried only in a
        later phase: what killed it may kill the next one.
        """
        with self._lock:
            self._look()
            missing = self._config.runtime.standby_workers - len(self._waiting) - len(self._starting)
            for _ in range(missing if self._phase >= self._not_before else 0):
                name = f"standby-{self._started}"
                self._started += 1
                self._starting[self._executor.submit(self._start, name)] = name

    def take(self, market: Market, name: str) -> Standby | None:
        """Turn a standby, preferably a loaded one, into the worker of that name; None if none waits."""
        if self._cluster.tells_markets_apart and market != "reserved":
            return None
        with self._lock:
            self._look()
            if not self._waiting:
                return None
            standby = min(self._waiting, key=lambda one: one.usage is None)
            self._waiting.remove(standby)
            self._record(standby, "taken")
            self._taken[standby.name] = standby.usage is not None
            standby.actor.name = name
            self._history.note("taken", standby=standby.name, worker=name)
            return standby

    def on_lost(self, name: str, reason: str) -> None:
        """Record that a standby died before taking its assigned slot."""
        with self._lock:
            self._book(StandbyTime(name, 0.0, 0.0, 0, "lost"))
            self._on_lost(name, reason, self._taken.pop(name))

    def _book_waiting(self) -> None:
        """Record the usage of waiting standbys up to now."""
        with self._lock:
            self._look()
            for standby in self._waiting:
                self._record(standby, "")
            self._ask_again()

    def close(self) -> None:
        """End the processes of the waiting standbys."""
        self._executor.shutdown()
        with self._lock:
            self._look()
            for standby in self._waiting:
                standby.actor.kill()
            self._waiting.clear()

    def _start(self, name: str) -> Standby:
        self._history.note("standby", standby=name)
        asked_at_s = time.monotonic()
        arguments = self._config, False, False, name, self._history.place, None, self._meeting
        reads = [self._config.model.path]
        actor = self._cluster.start(name, device_worker, *arguments, gpu=False, reads=reads)

        def note_ready(reading: Future[HostUsage]) -> None:
            if not reading.cancelled() and reading.exception() is None:
                self._history.note("standby_ready", standby=name)

        reading = actor.call(Worker.host_usage)
        reading.add_done_callback(note_ready)
        return Standby(name, actor, asked_at_s, reading)

    def _look(self) -> None:
        """Update the standbys that were started, answered or died."""
        for start in [start for start in self._starting if start.done()]:
            name, error = self._starting.pop(start), start.exception()
            if isinstance(error, SpotlightError | OSError):  # the machine is full: the run works without it
                self._on_lost(name, str(error), had_loaded=False)
            else:
                self._waiting.append(start.result())
        for standby in [standby for standby in self._waiting if standby.reading.done()]:
            error = standby.reading.exception()
            if error is None:
                standby.usage, self._failures = standby.reading.result(), 0
            else:
                self._waiting.remove(standby)
                standby.actor.kill()
                self._record(standby, "lost")
                self._on_lost(standby.name, str(error), standby.usage is not None)

    def _ask_again(self) -> None:
        for standby in self._waiting:
            if standby.reading.done():
                standby.reading = standby.actor.call(Worker.host_usage)

    def _on_lost(self, name: str, reason: str, had_loaded: bool) -> None:
        self.lost.append(f"{name} died: {reason}")
        self._history.note("standby_lost", standby=name)
        if not had_loaded:
            self._failures += 1
            self._not_before = self._phase + pause(self._failures)

    def _record(self, standby: Standby, end: StandbyEnd) -> None:
        now_s, usage = time.monotonic(), standby.usage or HostUsage(0.0, 0)
        cpu_s = max(0.0, usage.cpu_s - standby.recorded_cpu_s)
        self._book(StandbyTime(standby.name, now_s - standby.since_s, cpu_s, usage.memory_bytes, end))
        standby.since_s, standby.recorded_cpu_s = now_s, usage.cpu_s

    def _book(self, used: StandbyTime) -> None:
        with self._collector.writing() as since:
            since.standby_time.append(used)


class WorkerProvisioner:
    """The start of workers, at most one per slot. No call waits: without an instance, a start stays pending.

    Args:
        meeting: address of the driver's store, where workers meet; None if none do.
        rented: rented spot instances; None if the settings fix the number of devices.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: RunConfig,
        history: HistoryLog,
        standbys: Standbys,
        meeting: StoreAddress | None = None,
        rented: RentedCapacity | None = None,
    ) -> None:
        self._meeting = meeting
        self._rented = rented
        self._cluster = cluster
        self._config = config
        self._history = history
        self._standbys = standbys
        self._generation: dict[str, int] = {}
        self._coming: list[Arrival] = []
        self._phase = 0
        self._failures: dict[str, int] = {}  # in a row, by slot
        self._again_in: dict[str, int] = {}
        self._counts: dict[Market, int] = {}
        self._counted_at_s = 0.0
        self.failed: list[FailedStart] = []
        """Workers that died while they loaded, in order."""

    @property
    def calls(self) -> list[Future[WorkerReady]]:
        """A future for every worker on its way, which ends when the worker has loaded or died."""
        return [loaded for _, loaded in self._coming]

    def fill(self, filled: Collection[str], again: bool = True) -> list[Device]:
        """Start a worker for every slot that has none and none on its way, and return those started.

        A standby is used if available, even if still loading: it began before a new process would. With
        `again`, at the start of a phase, slots whose last worker died while loading are filled too. What
        killed it may kill the next one, so each further consecutive death doubles the phases until the
        next start. An instance rented meanwhile for such a slot costs money, but is in no ledger.
        """
        # End standbys that were given a slot but do not answer; `take` will find them dead. A new process has
        # no limit: one that hangs looks like one that waits for an instance.
        latest_s = time.monotonic() - self._config.runtime.start_timeout_s
        for device, loaded in self._coming:
            if device.standby and not loaded.done() and device.asked_at_s < latest_s:
                device.actor.kill()
        if again:
            self._phase += 1
        before = len(self._coming)
        with nullcontext() if self._rented is None else self._rented.lock:
            for market, index in free_slots(self._counted(), self._taken(filled)):
                if market == "spot" and self._rented is not None and not self._rented.with_room:
                    continue  # a worker that another thread is removing still has the instance
                self._coming.append(self._start(market, index))  # one by one: `close` ends all of them
        return [device for device, _ in self._coming[before:]]

    def has_more_devices(self, filled: Collection[str]) -> bool:
        """Return True if `fill` would use added devices; polls the cluster at most once a second."""
        if self._rented is not None:
            return bool(free_slots({"spot": self._rented.devices}, self._taken(filled)))
        now_s = time.monotonic()
        if not self._config.runtime.counts_devices or now_s < self._counted_at_s + _COUNT_EVERY_S:
            return False
        before = self._counts
        return any(count > before[market] for market, count in self._counted().items())

    def take(self) -> list[Arrival]:
        """Remove and return the workers that have loaded or died while loading.

        A dead standby is omitted: its death says nothing about its slot, which gets a new process at once.
        """
        ended: list[Arrival] = []
        for arrival in [arrival for arrival in self._coming if arrival[1].done()]:
            self._coming.remove(arrival)
            device, loaded = arrival
            error = loaded.exception()
            if error is not None and device.standby:
                device.actor.kill()
                self._standbys.on_lost(device.standby, str(error))
                self._history.note("lost", worker=device.name)
                if self._rented is not None:
                    self._rented.vacate(device.name, keeps_instance=True)
                continue
            ended.append(arrival)
            if error is None:
                self._failures.pop(device.slot, None)
            else:
                failures = self._failures[device.slot] = self._failures.get(device.slot, 0) + 1
                self._again_in[device.slot] = self._phase + pause(failures)
                self.failed.append(FailedStart(device.name, str(error), failures, pause(failures)))
        return ended

    def await_first(self) -> list[Arrival]:
        """Wait for the workers needed to start the run.

        These are the reserved ones and, unless spot instances come and go by themselves, all others.

        Raises:
            RuntimeFailure: if one dies or takes longer than runtime.start_timeout_s.
        """
        limit = self._config.runtime.start_timeout_s
        deadline = time.monotonic() + limit
        comes_and_goes = self._cluster.tells_markets_apart or self._rented is not None
        needed = [one for one in self._coming if one[0].market == "reserved" or not comes_and_goes]
        # A loading trainer waits for the others, so the first death must be noticed at once.
        ended, _ = wait([loaded for _, loaded in needed], timeout=limit, return_when=FIRST_EXCEPTION)
        died = {loaded for loaded in ended if loaded.exception() is not None}
        for device, loaded in sorted(needed, key=lambda arrival: arrival[1] not in died):
            try:
                loaded.result(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise RuntimeFailure(
                    f"worker {device.name} did not start in runtime.start_timeout_s={limit:g}: the cluster "
                    f"has {self._cluster.describe()} for {len(needed)} workers and "
                    f"{self._config.runtime.scorer_workers} scorers; add machines or lower the numbers"
                ) from error
            except WorkerLostError as error:
                raise RuntimeFailure(f"worker {device.name} died while starting: {error}") from error
        self._coming = [arrival for arrival in self._coming if arrival not in needed]
        return needed

    def drop_pending(self) -> list[tuple[Device, DeviceEventKind, str]]:
        """End workers on their way whose instance is gone; return each with its event and reason."""
        limit_s = self._config.runtime.start_timeout_s
        ended: list[tuple[Device, DeviceEventKind, str]] = []
        for arrival in [arrival for arrival in self._coming if not arrival[1].done()]:
            device, _ = arrival
            if self._rented is not None and self._rented.is_gone(device.name):
                ended.append((device, "failed", "its instance is gone"))
            elif self._rented is not None and (reason := self._rented.why_leaving(device.name)):
                ended.append((device, "left", f"before it had loaded: {reason}"))
            elif (
                self._rented is not None
                and self._rented.is_unproven(device.name)
                and device.asked_at_s < time.monotonic() - limit_s
            ):
                why = f"no worker joined on its kept instance in runtime.start_timeout_s={limit_s:g} s"
                ended.append((device, "failed", f"{why}, so it is released"))
            else:
                continue
            self._coming.remove(arrival)
            device.actor.kill()
        return ended

    def close(self) -> None:
        """End the processes of all workers on their way."""
        for device, _ in self._coming:
            device.actor.kill()

    def _taken(self, filled: Collection[str]) -> set[str]:
        """Return the slots that need no worker now: filled, paused, or with a worker on its way."""
        paused = {slot for slot, phase in self._again_in.items() if phase > self._phase}
        return {*filled, *paused, *(device.slot for device, _ in self._coming)}

    def _counted(self) -> dict[Market, int]:
        """Return the wanted number of workers of each market."""
        runtime = self._config.runtime
        seen = self._cluster.devices() if runtime.counts_devices else {}
        self._counts = worker_counts(runtime, seen, self._cluster.tells_markets_apart)
        if self._rented is not None:
            self._counts["spot"] = self._rented.devices
        self._counted_at_s = time.monotonic()
        return self._counts

    def _start(self, market: Market, index: int) -> Arrival:
        slot = f"{market}-{index}"
        generation = self._generation[slot] = self._generation.get(slot, -1) + 1
        name = f"{slot}.{generation}" if generation else slot
        runtime = self._config.runtime
        trains = index < runtime.reserved_trainers if market == "reserved" else runtime.spot_trainers > 0
        watches = market == "spot"
        if self._rented is not None and market == "spot":
            self._rented.assign(name)
        self._history.note("starting", worker=name)
        asked_at_s = time.monotonic()
        standby = None if trains else self._standbys.take(market, name)
        if standby is not None:
            device = Device(standby.actor, market, asked_at_s=asked_at_s, standby=standby.name)
            loaded = standby.actor.call(Worker.take_slot, name, watches, self._history.place)
        else:
            place: TrainingMembership | None = None
            if trains and self._config.divides_weights:
                assert self._meeting is not None, "trainers meet"
                place = TrainingMembership(
                    index,
                    runtime.trainer_workers,
                    self._meeting,
                    meet_s=runtime.start_timeout_s,
                    exchange_s=runtime.trainer_limit_s,
                )
            arguments = self._config, trains, watches, name, self._history.place, place, self._meeting
            model = self._config.model
            reads = [model.path, model.adapter] if trains and model.adapter else [model.path]
            actor = self._cluster.start(name, device_worker, *arguments, gpu=True, market=market, reads=reads)
            device, loaded = Device(actor, market, asked_at_s=asked_at_s), actor.call(Worker.ready)

        def note_end(_: Future[WorkerReady]) -> None:
            device.loaded_at_s = time.monotonic()

        loaded.add_done_callback(note_end)
        return device, loaded
