"""Devices without processes that generate for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import HistoryLog, new_life
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError
from tests.scripted import FakeFleet, Script

R = TypeVar("R")


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
                raise RuntimeFailure(f"worker holds weights v0, but {version} are requested")
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


class FakeGeneratorFleet(FakeFleet):
    """Devices that hold the weights of version 0.

    Args:
        names: the first one is the trainer.
        script: when their calls end.
        sampler: what they generate with.
    """

    def __init__(self, names: Sequence[str], script: Script, sampler: Sampler) -> None:
        self.actors = {name: FakeGenerator(name, script, sampler) for name in names}
        super().__init__(
            [
                Device(actor, "reserved" if name == names[0] else "spot", WeightsVersion(0))
                for name, actor in self.actors.items()
            ]
        )

    def keep_history(self, folder: Path, sampler: Sampler) -> HistoryLog:
        """Have the devices write what they do, and return the driver's part of that history."""
        life = new_life(folder)
        for name, actor in self.actors.items():
            actor._samples = SamplesInFlight(sampler, actor._look, HistoryLog(life, name))
        return HistoryLog(life, "driver")

    def withdraw(self, name: str) -> Device:
        """Take a device out, so that it can come later."""
        (device,) = [device for device in self.devices if device.name == name]
        self.devices.remove(device)
        return device
