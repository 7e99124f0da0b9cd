"""Standbys: worker processes without a slot, with their imports done and their model loaded.

When a worker is lost or soon will be, a standby takes its slot within milliseconds; a new process needs
seconds. A standby holds no device and is not billed. Its use of the host is recorded.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from gpu_runtime.cluster.protocol import Cluster, RemoteActor
from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.fleet.slots import pause
from gpu_runtime.sequence_parallel.store_address import StoreAddress
from gpu_runtime.worker import device_worker
from gpu_runtime.worker.history import HistoryLog
from gpu_runtime.worker.protocol import HostUsage, Worker
from storage.config.run_config import RunConfig
from storage.errors import SpotlightError
from storage.record.records import Market, StandbyEnd, StandbyTime


@dataclass(eq=False)
class Standby:
    """A process that waits for a slot.

    Attributes:
        name: name of the standby, which it keeps until it takes a slot.
        actor: its process.
        since_s: end of its recorded time (monotonic seconds); at first, when it was asked for.
        reading: call that returns its usage; the first one ends when it has loaded.
        usage: last answer; None before it has loaded.
        recorded_cpu_s: processor time already recorded.
    """

    name: str
    actor: RemoteActor[Worker]
    since_s: float
    reading: Future[HostUsage] = field(init=False)
    usage: HostUsage | None = None
    recorded_cpu_s: float = 0.0

    def __post_init__(self) -> None:
        self.read()

    @property
    def loaded(self) -> bool:
        """True if it has loaded its model."""
        return self.usage is not None

    def read(self) -> None:
        """Ask the process for its usage so far."""
        self.reading = self.actor.call(Worker.host_usage)


class Standbys:
    """The `runtime.standby_workers` standbys of a run. Thread-safe.

    If instances state how they are rented, standbys wait on reserved ones, and replace reserved workers only:
    the slot of a spot worker is on an instance that is gone with it.

    Args:
        cluster: cluster on which they are started.
        config: configuration of the run.
        history: history log of the driver, beside theirs.
        collector: collector of their use of their hosts.
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
        # Asking a cluster for a process takes up to 0.1 s, during which no device would get work.
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
        """Reports of the standbys that died, in words, in order."""

    def begin_phase(self) -> None:
        """Find out which have died since the last phase, and start missing ones in the background."""
        with self._lock:
            self._phase += 1
            self._look()
            self._ask_again()
            self.fill()

    def fill(self) -> None:
        """Start missing standbys in the background; call it when no worker is on its way.

        Otherwise the worker's start would take longer. A standby that dies while loading is retried only with
        a later phase: what killed it may kill the next one.
        """
        with self._lock:
            self._look()
            missing = self._config.runtime.standby_workers - len(self._waiting) - len(self._starting)
            for _ in range(missing if self._phase >= self._not_before else 0):
                name = f"standby-{self._started}"
                self._started += 1
                self._starting[self._executor.submit(self._start, name)] = name

    def take(self, market: Market, name: str) -> Standby | None:
        """Turn a standby into a worker and return it; None if none waits. A loaded one goes first.

        Args:
            market: market of the slot.
            name: new name of its process.
        """
        if self._cluster.tells_markets_apart and market != "reserved":
            return None
        with self._lock:
            self._look()
            standby = next(iter(sorted(self._waiting, key=lambda one: not one.loaded)), None)
            if standby is None:
                return None
            self._waiting.remove(standby)
            self._record(standby, "taken")
            self._taken[standby.name] = standby.loaded
            standby.actor.name = name
            self._history.note("taken", standby=standby.name, worker=name)
            return standby

    def on_lost(self, name: str, reason: str) -> None:
        """Record that a standby died before it had taken its assigned slot."""
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
        standby = Standby(name, actor, asked_at_s)
        standby.reading.add_done_callback(lambda reading: self._note_ready(name, reading))
        return standby

    def _note_ready(self, name: str, reading: Future[HostUsage]) -> None:
        """Record that a standby has loaded; called by any thread."""
        if not reading.cancelled() and reading.exception() is None:
            self._history.note("standby_ready", standby=name)

    def _look(self) -> None:
        """Update the standbys that were started, have answered or died."""
        for start in [start for start in self._starting if start.done()]:
            name, error = self._starting.pop(start), start.exception()
            if isinstance(error, SpotlightError | OSError):  # the machine is full: the run can do without one
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
                self._on_lost(standby.name, str(error), standby.loaded)

    def _ask_again(self) -> None:
        for standby in self._waiting:
            if standby.reading.done():
                standby.read()

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
