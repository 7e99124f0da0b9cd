"""Devices without processes that generate for real, one call after another, as a test's script says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty
from typing import Any, TypeVar

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion, WorkLeft
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import HistoryLog, new_life
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError
from storage.record.records import DeviceState

R = TypeVar("R")

NOTICE = Notice("gcp", 1030.0, 1000.0, "preempted is TRUE")


class Script:
    """In place of the loop's queue of calls that have ended: ends one whenever the loop waits.

    Args:
        choose: which of the devices that have a call under way ends its oldest; the first by default.
        before: what happens before the loop's n-th wait, by n from 0.
    """

    def __init__(
        self,
        choose: Callable[[list[str]], str] = lambda names: names[0],
        before: dict[int, Callable[[], object]] | None = None,
    ) -> None:
        self.now = 0.0
        self.waits = 0
        self.hung: set[str] = set()
        self.before = before or {}
        self.under_way: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self.choose = choose
        self.overdue: Callable[[], bool] = lambda: False
        """What happens when the loop waits for nothing but time-outs; whether there are any."""
        self._ended: deque[Future[Any]] = deque()

    def clock(self) -> float:
        """Seconds; they pass only when the loop waits for nothing else."""
        return self.now

    def start(self, name: str, work: Callable[[], Any]) -> Future[Any]:
        """A call that does its work when it ends."""
        call: Future[Any] = Future()
        self.under_way.setdefault(name, deque()).append((call, work))
        return call

    def end(self, name: str) -> None:
        """End a device's oldest call."""
        call, work = self.under_way[name].popleft()
        try:
            call.set_result(work())
        except (WorkerLostError, GroupBrokenError, RuntimeFailure) as error:
            call.set_exception(error)

    def put(self, ended: Future[Any]) -> None:
        """See `queue.SimpleQueue`."""
        self._ended.append(ended)

    def get(self, timeout: float | None) -> Future[Any]:
        """Return the next call that has ended; if there is none, let one end, or time pass."""
        number, self.waits = self.waits, self.waits + 1
        self.before.get(number, lambda: None)()
        while not self._ended:
            busy = [name for name, calls in self.under_way.items() if calls and name not in self.hung]
            if not busy and timeout is None:
                assert self.overdue(), "the loop waits for nothing"
                continue
            if not busy:
                assert timeout is not None
                self.now += timeout
                raise Empty
            self.end(self.choose(busy))
        return self._ended.popleft()

    def get_nowait(self) -> Future[Any]:
        """See `queue.SimpleQueue`."""
        if not self._ended:
            raise Empty
        return self._ended.popleft()


class FakeGenerator(RemoteActor[Worker]):
    """A device's process.

    Attributes:
        begun: what each lease began with.
        joined: the groups that it was in, by their members.
        calls: calls made.
        looks: how often it has looked for a notice; `notice_at` says what it sees then.
        dead: its calls end with its loss from now on.
        deaf: being killed does not stop it: what it sends afterwards is late.
    """

    def __init__(self, name: str, script: Script, sampler: Sampler) -> None:
        super().__init__(name)
        self.begun: list[list[SampleRequest | SampleState]] = []
        self.calls = 0
        self.looks = 0
        self.notice_at: Callable[[int], Notice | None] = lambda look: None
        self.dead = False
        self.deaf = False
        self.place: WorkerGroup | None = None
        self.joined: list[tuple[str, ...]] = []
        self.rendezvous: FakeRendezvous | None = None
        self._script = script
        self._samples = SamplesInFlight(sampler, self._look, agrees=True)

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """`begin_samples` and `advance_samples`, as the worker has them."""
        self.calls += 1
        return self._script.start(self.name, lambda: self._do(method.__name__, *args))

    def kill(self) -> None:
        """See `RemoteActor`."""
        self.dead = not self.deaf
        self._script.hung.discard(self.name)

    def _do(self, method: str, *args: Any) -> Any:
        if self.dead:
            raise WorkerLostError(f"{self.name} is gone")
        if method == "begin_samples":
            version, lease, work, steps = args
            if version != WeightsVersion(0):
                raise RuntimeFailure(f"worker holds weights v0, but {version} are asked for")
            self.begun.append(list(work))
            self._samples.begin(lease, work)
            return self._samples.advance(lease, steps)
        if method in ("join_group", "leave_group", "in_group"):
            return getattr(self, f"_{method}")(*args)
        assert method == "advance_samples"
        return self._samples.advance(*args)

    def _leave_group(self) -> None:
        self._samples.drop()
        self.place = self._samples.sp_group = None

    def _join_group(self, place: WorkerGroup, _timeout_s: float) -> None:
        self._leave_group()
        assert self.rendezvous is not None
        if place.prefix in self.rendezvous.aborted or self.rendezvous.dead(place):
            raise GroupBrokenError(f"{place.prefix} was broken off")
        self.place = place
        self.joined.append(place.members)
        if len(place.members) > 1:
            self._samples.sp_group = FakeGroupMember(self, place, self.rendezvous)  # type: ignore[assignment]

    def _in_group(self, epoch: int, method: str, *args: Any) -> Any:
        assert self.rendezvous is not None
        if self.place is None or self.place.epoch != epoch:
            raise GroupBrokenError(f"{self.name} is not in the group of epoch {epoch}")
        if self.rendezvous.dead(self.place):
            self._leave_group()
            raise GroupBrokenError("connection closed by peer")
        return self._do(method, *args)

    def _look(self) -> Notice | None:
        self.looks += 1
        return self.notice_at(self.looks)


class FakeGroupMember:
    """The members of a group: all get the same answer to their n-th question."""

    def __init__(self, own: FakeGenerator, place: WorkerGroup, rendezvous: FakeRendezvous) -> None:
        self.leads = place.leader == own.name
        rendezvous.looks[place.prefix, own.name] = own.looks
        self._place = place
        self._rendezvous = rendezvous
        self._asked = 0

    def any_true(self, said: bool) -> bool:
        """See `SequenceParallelMember`."""
        self._asked += 1
        members = [self._rendezvous.actors[name] for name in self._place.members]
        question = self._place.prefix, self._asked
        if question not in self._rendezvous.answers:
            looked = [
                self._rendezvous.looks.get((self._place.prefix, actor.name), actor.looks) for actor in members
            ]
            notices = [
                actor.notice_at(look + self._asked) for actor, look in zip(members, looked, strict=True)
            ]
            self._rendezvous.answers[question] = said or any(notice is not None for notice in notices)
        return self._rendezvous.answers[question]


class FakeRendezvous(ControlStore):
    """Where groups meet and are called off: members that wait are freed at once.

    Args:
        actors: all devices, by name.
        script: when their calls end.
    """

    def __init__(self, actors: dict[str, FakeGenerator], script: Script) -> None:
        self.actors = actors
        self.aborted: set[str] = set()
        self.answers: dict[tuple[str, int], bool] = {}
        self.looks: dict[tuple[str, str], int] = {}
        self._script = script
        for actor in actors.values():
            actor.rendezvous = self

    def dead(self, place: WorkerGroup) -> list[str]:
        """Members whose processes are gone."""
        return [name for name in place.members if self.actors[name].dead]

    def abort(self, prefix: str) -> None:
        """See `ControlStore`."""
        if prefix in self.aborted:
            return
        self.aborted.add(prefix)
        for name, actor in self.actors.items():
            if actor.place is None or actor.place.prefix != prefix or name in self._script.hung:
                continue
            actor.place = None
            while not actor.dead and self._script.under_way.get(name):
                self._script.end(name)

    def ended(self, prefix: str) -> None:
        """Do nothing: it has no keys."""


class FakeGeneratorFleet:
    """Devices that hold the weights of version 0; notes what is booked.

    Args:
        names: the first one is the trainer.
        script: when their calls end.
        sampler: what they generate with.
    """

    def __init__(self, names: Sequence[str], script: Script, sampler: Sampler) -> None:
        self.actors = {name: FakeGenerator(name, script, sampler) for name in names}
        self._trainer = names[0]
        self._devices = [
            Device(actor, "reserved" if name == self._trainer else "spot", WeightsVersion(0))
            for name, actor in self.actors.items()
        ]
        self.newcomers: Callable[[], list[Future[Any]]] = lambda: []
        self.states: dict[str, list[str]] = {}
        self.events: list[tuple[str, str]] = []

    def keep_history(self, folder: Path, sampler: Sampler) -> HistoryLog:
        """Have the devices write what they do, and return the driver's part of that history."""
        life = new_life(folder)
        for name, actor in self.actors.items():
            actor._samples = SamplesInFlight(sampler, actor._look, HistoryLog(life, name))
        return HistoryLog(life, "driver")

    def workers(self, version: WeightsVersion) -> list[Device]:
        """See `GeneratingFleet`."""
        return list(self._devices)

    def withdraw(self, name: str) -> Device:
        """Take a device out, so that it can come later."""
        (device,) = [device for device in self._devices if device.name == name]
        self._devices.remove(device)
        return device

    def admit(self, device: Device) -> None:
        """A device holds the weights from now on."""
        self._devices.append(device)

    def add_ready_workers(self) -> list[Future[Any]]:
        """See `GeneratingFleet`."""
        return self.newcomers()

    forming = False

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
        self._devices.remove(device)
        self.events.append((device.name, "lost"))
        if device.name == self._trainer:
            raise RuntimeFailure(f"the trainer's process is gone ({error})")

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """See `GeneratingFleet`."""
        assert "runtime.lease_s=" in reason
        device.actor.kill()
        self.events.append((device.name, "hung"))
        self.on_worker_lost(device, WorkerLostError(reason))
