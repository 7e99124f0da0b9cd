"""The fleet as groups of devices that share each sequence, as seen by the generating loop.

Groups are planned whenever devices come, go or get a notice. A planned change does not wait for leases to
end: a group no longer in the plan gets no further chunk, and its members' calls to join the next group queue
behind their current chunks. After a loss the group is called off at once, and its members' later answers are
late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Lock, Timer
from typing import Any, Concatenate

from gpu_runtime.cluster.protocol import P, R, RemoteActor
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import GeneratingFleet
from gpu_runtime.scheduling.group_layout import Group, GroupRegistry, Layout, WorkerGroup, plan_layout
from gpu_runtime.scheduling.requests import WeightsVersion, WorkLeft
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import SampleChunk, Worker
from storage.clock import now
from storage.errors import GroupBrokenError, RuntimeFailure, WorkerLostError
from storage.record.records import DeviceState, GroupRecord

_ANSWER_SHARE = 0.25
"""Share of a lease within which a member of a called-off group must answer, or it is hung; it answers within
milliseconds, or when its computation reaches the next exchange."""

_MOST_FAILURES = 5
"""Consecutive times that groups may break without a lost member or a finished step."""

_Failure = WorkerLostError | GroupBrokenError


class GeneratingGroup(RemoteActor[Worker]):
    """Devices that share each sequence, called as if they were one device, while their group exists.

    Every member gets the same calls in the same order. The leader's answer counts, because only it carries
    states and images; the others' show that they are alive and whether they are under notice. A member that
    dies breaks the group, which is called off at once to free the others wherever they wait for it.
    Answers arrive in other threads; a lock guards what they write.

    Args:
        devices: members, the leader first.
        call_off: frees members waiting for each other; callable from any thread, even twice.
    """

    def __init__(
        self, place: WorkerGroup, devices: Sequence[Device], call_off: Callable[[WorkerGroup], None]
    ) -> None:
        super().__init__("+".join(device.name for device in devices))
        self.place = place
        self.devices = tuple(devices)
        self.device = Device(self, devices[0].market, degree=len(devices))
        """The group as the generating loop sees it."""
        self.failures: dict[str, _Failure] = {}
        """Members whose calls failed, with their errors."""
        self.notices: dict[str, Notice | None] = {}
        """Notices of the members' machines, from their last answers."""
        self.step_s: SimpleQueue[float] = SimpleQueue()
        """Seconds per denoising step in each chunk that the leader answered."""
        self.timed = False
        """True once one of them has been taken: the first chunk warms the group up."""
        self.over = False
        """True once it has ended: its members' answers are late."""
        self.overdue = False
        """True once nothing waits for its answers."""
        self.formed_at: float | None = None
        """Time at which its members had met, in unix seconds; None before that."""
        self.call_off = call_off
        self._lock = Lock()
        self._open: dict[Future[Any], str] = {}

    @property
    def broken(self) -> bool:
        """True if it can do no more work."""
        return self.over or bool(self.failures)

    @property
    def gone(self) -> list[tuple[Device, WorkerLostError]]:
        """Members whose processes are known to be gone."""
        with self._lock:
            failures = dict(self.failures)
        return [
            (device, error)
            for device in self.devices
            if isinstance(error := failures.get(device.name), WorkerLostError)
        ]

    @property
    def open_calls(self) -> dict[Future[Any], str]:
        """Calls under way, with the names of their members."""
        with self._lock:
            return dict(self._open)

    def call(
        self, method: Callable[Concatenate[Worker, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Call all members; the answer is the leader's chunk, or WorkerLostError if the group broke."""
        if self.broken:
            failed: Future[R] = Future()
            failed.set_exception(WorkerLostError(f"group {self.name} is broken"))
            return failed
        if len(self.devices) == 1:
            return self.ask(lambda device: device.actor.call(method, *args, **kwargs))
        epoch, name = self.place.epoch, method.__name__
        return self.ask(lambda device: device.actor.call(Worker.in_group, epoch, name, *args, **kwargs))

    def kill(self) -> None:
        """End the processes of all members."""
        for device in self.devices:
            device.actor.kill()

    def ask(self, start: Callable[[Device], Future[R]], limit_s: float | None = None) -> Future[R]:
        """Start a call on each member (see `call`); after `limit_s` the group is `overdue`."""
        calls = {device.name: start(device) for device in self.devices}
        answer: Future[R] = Future()
        guard = Lock()

        def on_answer(call: Future[R]) -> None:
            breaks = self._record_answer(call)
            with guard:
                if not answer.done():
                    self._set_answer(answer, calls, call.exception())
            # Last: freed members fail too, but the leader's answer must be set first.
            if breaks:
                self.call_off(self.place)

        def time_out() -> None:
            with guard:
                if not answer.done():
                    self.overdue = True
                    answer.set_exception(WorkerLostError(f"group {self.name} does not answer"))

        if limit_s is not None:
            timer = Timer(limit_s, time_out)
            timer.daemon = True
            timer.start()
            answer.add_done_callback(lambda _: timer.cancel())
        with self._lock:
            self._open |= {call: name for name, call in calls.items()}
        for call in calls.values():
            call.add_done_callback(on_answer)
        return answer

    def _record_answer(self, call: Future[Any]) -> bool:
        """Record a member's answer; return True if it breaks the group."""
        error = call.exception()
        with self._lock:
            name = self._open.pop(call)
            first = isinstance(error, _Failure) and not self.failures
            if isinstance(error, _Failure) and not isinstance(self.failures.get(name), WorkerLostError):
                self.failures[name] = error
            return first and not self.over

    def _set_answer(
        self, answer: Future[Any], calls: Mapping[str, Future[Any]], error: BaseException | None
    ) -> None:
        """Set the answer of a call of all members if it is known; `error` is the last member's."""
        if error is not None and not isinstance(error, _Failure):
            answer.set_exception(error)  # no other group would help
            return
        leader = calls[self.place.leader]
        if not leader.done():
            return
        ended = all(call.done() for call in calls.values())
        if not self.failures and not ended:
            return
        lead = leader.exception()
        if lead is None:
            chunk = leader.result()
            if isinstance(chunk, SampleChunk):  # under notice if any member is
                chunks = {n: one.result() for n, one in calls.items() if one.done() and not one.exception()}
                notices = {name: one.notice for name, one in chunks.items()}
                self.notices |= notices
                if chunk.step_s is not None:
                    self.step_s.put(chunk.step_s)
                chunk = dataclasses.replace(chunk, notice=next(filter(None, notices.values()), None))
            answer.set_result(chunk)
        elif isinstance(lead, WorkerLostError) or self.gone or ended:
            answer.set_exception(WorkerLostError(f"group {self.name} broke: {lead}"))


class GroupedFleet:
    """A fleet whose devices work in groups of at most `degree`, for one phase of generating.

    Groups never cross instances. A surplus device works alone. `close` ends the phase's groups.

    Args:
        step_s: degree → its weight for `plan_layout`; only these degrees are used.
        rendezvous: store at which members meet and are called off.
        registry: the run's groups, which have distinct numbers.
        lease_s: seconds without an answer after which a device counts as hung.
        new_group: makes a group.
    """

    def __init__(
        self,
        fleet: GeneratingFleet,
        version: WeightsVersion,
        step_s: Mapping[int, float],
        rendezvous: ControlStore,
        registry: GroupRegistry,
        instance_of: Callable[[Device], str],
        lease_s: float,
        new_group: Callable[..., GeneratingGroup] = GeneratingGroup,
    ) -> None:
        self._new_group = new_group
        self._fleet = fleet
        self._version = version
        self._step_s = step_s
        self._rendezvous = rendezvous
        self._registry = registry
        self._instance_of = instance_of
        self._lease_s = lease_s
        self._groups: dict[WorkerGroup, GeneratingGroup] = {}
        self._forming: dict[GeneratingGroup, Future[Any]] = {}
        self._former: dict[str, GeneratingGroup] = {}
        self._planned: frozenset[str] | None = None
        self._broken: list[WorkerGroup] = []
        self._members: dict[str, Device] = {}
        self._instances: dict[str, str] = {}
        self._lost: set[str] = set()
        self._failures = 0
        self.records: list[GroupRecord] = []
        """Groups that have ended."""

    def workers(self, version: WeightsVersion) -> list[Device]:
        """Return the formed groups, each as one device."""
        assert version == self._version, "a phase has one version of the weights"
        for device in self._fleet.workers(version):
            former, place = self._former.get(device.name), self._registry.group_of.get(device.name)
            if former is not None and not former.over and former.open_calls:
                continue  # it still has chunks of its last group
            if place is None or place not in self._groups:
                self._fleet.enter(device.name, "idle")
            elif self._groups[place] in self._forming:
                self._fleet.enter(device.name, "regroup")
        return [group.device for group in self._groups.values() if group not in self._forming]

    def add_ready_workers(self) -> list[Future[Any]]:
        """Register newcomers and plan again; return the calls of newcomers and groups on their way."""
        self._end_forming()
        if self._broken:
            self._plan()  # first: starting a replacement takes longer than continuing without it
        coming = self._fleet.add_ready_workers()
        self._plan()
        return [*coming, *self._forming.values()]

    @property
    def forming(self) -> bool:
        """True while groups are being formed."""
        return bool(self._forming)

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """Return True only if devices were added: the degree is fixed, whatever is left of the phase."""
        return self._fleet.regroups(left, freed)

    def enter(self, worker: str, state: DeviceState) -> None:
        """Record the state of a group, which is that of all its members, from now on."""
        for group in self._groups.values():
            if group.name == worker:
                for device in group.devices:
                    self._fleet.enter(device.name, state)

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """Apply what the providers of a group's members say now."""
        group = group_of(device)
        self._failures = 0  # it has done a chunk
        for member in group.devices:
            if member.name in group.notices and member.name not in self._lost:
                self._fleet.on_notice(member, group.notices[member.name])

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """Remove a broken group: its dead members are lost, the others continue in other groups.

        Raises:
            RuntimeFailure: if the trainer is gone, or groups keep breaking although all members live.
        """
        group = group_of(device)
        self._end(group)
        if not group.gone:
            self._count_failure(str(error))

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """Call off a group without progress, and kill members that still do not answer.

        Raises:
            RuntimeFailure: if the trainer is among them, or groups keep stalling although all members answer.
        """
        group = group_of(device)
        silent = {group.name}
        if len(group.devices) > 1:
            self._call_off(group.place)
            wait(group.open_calls, timeout=_ANSWER_SHARE * self._lease_s)
            silent = set(group.open_calls.values())
        for member in group.devices:
            if member.name in silent and member.name not in self._lost:
                self._lost.add(member.name)
                self._fleet.kill_hung_worker(member, reason)
        self._end(group)
        if not silent and not group.gone:
            self._count_failure(reason)

    def close(self) -> None:
        """End the groups with the phase: all devices work alone again."""
        for group in list(self._groups.values()):
            if group.open_calls:  # its window has closed: members need not wait for each other
                self._call_off(group.place)
            self._retire(group)
        self._registry.follow(())
        for name, device in self._members.items():
            if name not in self._lost:
                device.actor.call(Worker.leave_group)

    def _plan(self) -> None:
        """Change to the groups that the current devices should form."""
        usable = self._usable()
        if not self._is_due(usable):
            return
        change = self._registry.follow(self._layout(usable), self._broken)
        self._planned, self._broken = frozenset(usable), []
        for place in change.dissolved if change else ():
            if place in self._groups:
                self._retire(self._groups[place])
        for place in change.formed if change else ():
            self._form(place, [usable[name] for name in place.members])
        for name in change.idle if change else ():
            if name not in self._lost:
                self._members[name].actor.call(Worker.leave_group)

    def _is_due(self, usable: Mapping[str, Device]) -> bool:
        """Return True if other groups may be wanted."""
        return frozenset(usable) != self._planned or bool(self._broken)

    def _usable(self) -> dict[str, Device]:
        """Return the devices that are not under notice, by name."""
        return {d.name: d for d in self._fleet.workers(self._version) if d.notice is None}

    def _layout(self, usable: Mapping[str, Device]) -> Layout:
        """Return the groups that the devices should form."""
        for device in usable.values():
            if device.name not in self._instances:
                self._instances[device.name] = self._instance_of(device)
        places = {name: self._instances[name] for name in usable}
        standing = [Group(self._instances[place.leader], place.members) for place in self._registry.groups]
        return self._best_layout(places, standing)

    def _best_layout(self, places: Mapping[str, str], standing: Sequence[Group]) -> Layout:
        """Return the groups for devices, given with their instances; some already exist."""
        return plan_layout(places, self._step_s, standing)

    def _form(self, place: WorkerGroup, devices: Sequence[Device]) -> None:
        group = self._groups[place] = self._new_group(place, devices, self._call_off)
        self._members |= {device.name: device for device in devices}
        # A member may have two chunks to do first; the driver gives up before the members do.
        limit_s = 2 * self._lease_s
        self._forming[group] = group.ask(
            lambda device: device.actor.call(Worker.join_group, place, 2 * limit_s), limit_s
        )

    def _end_forming(self) -> None:
        """Handle groups that formed or failed to form."""
        for group, formed in list(self._forming.items()):
            if not formed.done():
                continue
            del self._forming[group]
            error = formed.exception()
            if error is None:
                self._begin(group)
            elif isinstance(error, WorkerLostError):
                if group.overdue:
                    self.kill_hung_worker(
                        group.device, f"it joined no group in 2 x runtime.lease_s={self._lease_s:g} s"
                    )
                else:
                    self.on_worker_lost(group.device, error)
            else:
                raise error

    def _begin(self, group: GeneratingGroup) -> None:
        group.formed_at = now()

    def _end(self, group: GeneratingGroup) -> None:
        """End a broken group; its live members wait for another one."""
        self._call_off(group.place)
        for member, error in group.gone:
            if member.name not in self._lost:
                self._lost.add(member.name)
                self._fleet.on_worker_lost(member, error)
        if self._groups.get(group.place) is group:
            self._broken.append(group.place)
            for member in group.devices:
                if member.name not in self._lost and member.notice is None:
                    self._fleet.enter(member.name, "regroup")
            self._retire(group)
        group.over = True

    def _retire(self, group: GeneratingGroup) -> None:
        """Give a group no further chunk, and call it off if it is broken or not yet formed."""
        del self._groups[group.place]
        group.device.retiring = True
        self._former |= {device.name: group for device in group.devices}
        if self._forming.pop(group, None) is not None or group.broken:
            self._call_off(group.place)
            group.over = True
        self._rendezvous.ended(group.place.prefix)
        since, place = group.formed_at, group.place
        if since is not None:
            instance = self._instances[place.leader]
            self.records.append(GroupRecord(place.epoch, place.place, instance, place.members, since, now()))

    def _call_off(self, place: WorkerGroup) -> None:
        if len(place.members) > 1:
            self._rendezvous.abort(place.prefix)

    def _count_failure(self, reason: str) -> None:
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            raise RuntimeFailure(
                f"groups of devices that share a sequence broke {self._failures} times in a row although all "
                f"members are alive, lastly: {reason}; raise runtime.lease_s={self._lease_s:g}, or set all "
                "degrees of sequence_parallel to 1"
            )


def group_of(device: Device) -> GeneratingGroup:
    """Return the group that the loop sees as this device."""
    assert isinstance(device.actor, GeneratingGroup), "the loop was given groups"
    return device.actor
