"""Calls that end one after another, as a test's script says, and the fleet whose devices they are of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from queue import Empty
from typing import Any

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.scheduling.requests import WeightsVersion, WorkLeft
from gpu_runtime.spot.notices.notice import Notice
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError
from storage.record.records import DeviceState

NOTICE = Notice("gcp", 1030.0, 1000.0, "preempted is TRUE")


class Script:
    """In place of the loop's queue of calls that have ended: ends one whenever the loop waits.

    Args:
        choose: which of the actors that have a call under way ends its oldest; by default the one that has
            waited longest for its turn.
        before: what happens before the loop's n-th wait, by n from 0.
        dying: actors whose next call ends with their death.
        hung: actors whose calls do not end while others' do.
    """

    def __init__(
        self,
        choose: Callable[[list[str]], str] = lambda names: names[0],
        before: dict[int, Callable[[], object]] | None = None,
        dying: Collection[str] = (),
        hung: Collection[str] = (),
    ) -> None:
        self.now = 0.0
        self.waits = 0
        self.choose = choose
        self.before = before or {}
        self.dying = set(dying)
        self.hung = set(hung)
        self.under_way: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        """Calls that have not ended, by actor: those whose turn comes first lead."""
        self.idle: Callable[[], object] = lambda: None
        """Called when the loop waits although no call is under way and no time-out is set."""
        self._ended: deque[Future[Any] | None] = deque()

    def clock(self) -> float:
        """Seconds; they pass when the loop waits for nothing else, or as calls say."""
        return self.now

    def start(self, name: str, work: Callable[[], Any]) -> Future[Any]:
        """A call that does its work when it ends."""
        call: Future[Any] = Future()
        self.under_way.setdefault(name, deque()).append((call, work))
        return call

    def end(self, name: str) -> None:
        """End an actor's oldest call."""
        calls = self.under_way.pop(name)
        call, work = calls.popleft()
        if calls:
            self.under_way[name] = calls
        try:
            if name in self.dying:
                self.dying.remove(name)
                raise WorkerLostError(f"{name} is gone")
            call.set_result(work())
        except (WorkerLostError, GroupBrokenError, RuntimeFailure) as error:
            call.set_exception(error)

    def put(self, ended: Future[Any] | None) -> None:
        """See `queue.SimpleQueue`."""
        self._ended.append(ended)

    def get(self, timeout: float | None) -> Future[Any] | None:
        """Return the next call that has ended; if there is none, let one end, or time pass."""
        number, self.waits = self.waits, self.waits + 1
        self.before.get(number, lambda: None)()
        while not self._ended:  # the end of some calls is nothing that the loop waits for
            if busy := [name for name in self.under_way if name not in self.hung]:
                self.end(self.choose(busy))
            elif timeout is not None:
                self.now += timeout
                raise Empty
            else:
                self.idle()
                assert self._ended or self.under_way.keys() - self.hung, "the loop waits for nothing"
        return self._ended.popleft()

    def get_nowait(self) -> Future[Any] | None:
        """See `queue.SimpleQueue`."""
        if not self._ended:
            raise Empty
        return self._ended.popleft()


class FakeFleet:
    """Devices that hold the weights of a phase; notes what is booked."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = list(devices)
        self.newcomers: list[Future[Any]] = []
        self.forming = False
        self.states: dict[str, list[str]] = {}
        self.events: list[tuple[str, str]] = []

    def workers(self, version: WeightsVersion) -> list[Device]:
        """See `GeneratingFleet`."""
        return list(self.devices)

    def add_ready_workers(self) -> list[Future[Any]]:
        """See `GeneratingFleet`."""
        return [call for call in self.newcomers if not call.done()]

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """See `GeneratingFleet`."""
        return False

    def enter(self, worker: str, state: DeviceState) -> None:
        """See `GeneratingFleet`."""
        booked = self.states.setdefault(worker, [])
        if not booked or booked[-1] != state:
            booked.append(state)

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """See `GeneratingFleet`."""
        if (device.notice is None) != (notice is None):
            self.events.append((device.name, "withdrawn" if notice is None else "notice"))
        device.notice = notice

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """See `GeneratingFleet`."""
        self.devices.remove(device)
        self.events.append((device.name, "lost"))
        if device.market == "reserved":
            raise RuntimeFailure(f"the trainer's process is gone ({error})")

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """See `GeneratingFleet`."""
        assert "runtime.lease_s=" in reason
        device.actor.kill()
        self.events.append((device.name, "hung"))
        self.on_worker_lost(device, WorkerLostError(reason))
