"""A generation phase under the virtual clock in which groups of devices share samples. Pure.

The groups are those of live runs (`gpu_runtime/groups/`); only their members are virtual. Members meet once
all are free, and a lost one breaks its group when the run knows of the loss.

Static groups, the baseline for elastic ones, exist in no live run. If one loses a member, the other members'
processes restart: they load the model and the weights before they form another group with devices that are
then in none. Groups persist between phases; at the beginning of a phase, the processes of a group that should
change restart, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.groups.grouped_fleet import GroupedFleet
from gpu_runtime.groups.sharing import MeasuredFleet
from gpu_runtime.scheduling.group_layout import Group, Layout, WorkerGroup, large_first, plan_layout
from gpu_runtime.simulator.devices import NOTICE, SimulatedDevice, VirtualGroup, VirtualWorker, simulated
from gpu_runtime.simulator.generation import GenerationPhase, PhaseSetup
from gpu_runtime.simulator.grouping import Grouping
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.config.sequence_parallel import AUTO
from storage.errors import GroupBrokenError, WorkerLostError
from storage.record.records import DeviceState


class GroupedPhase(GenerationPhase):
    """A phase whose devices form groups that pull batches; it is also where they meet."""

    def __init__(self, setup: PhaseSetup) -> None:
        super().__init__(setup)
        self._places: dict[str, VirtualGroup] = {}  # by prefix
        self._unmet: dict[str, VirtualGroup] = {}  # not met yet, by prefix
        grouping, work = setup.grouping, setup.work
        self._restarts = grouping.static
        self._loading: set[str] = set()  # members that restart to form a static group
        rendezvous: Any = self
        lease_s, instance_of = setup.runtime.lease_s, lambda device: simulated(device).instance
        rest = rendezvous, grouping.registry, instance_of, lease_s
        degree, degrees = grouping.by_kind[work.kind], setup.times.degrees
        if degree == AUTO:
            times = grouping.step_times
            self._groups: GroupedFleet = MeasuredFleet(
                self, work.version, times, degrees, *rest, self._clock, self._new_group
            )
        else:
            most = large_first(degrees, degree)
            kind = partial(_StaticFleet, grouping) if grouping.static else GroupedFleet
            self._groups = kind(self, work.version, most, *rest, self._new_group)

    def _generate(self) -> None:
        self._dispatcher.run(self._groups, self)
        begun = {group: group.meeting.at for group in self._unmet.values() if group.meeting is not None}
        restarts, self._restarts = self._restarts, False  # static groups persist between phases
        self._groups.close()
        for group, at in begun.items() if restarts else ():  # a restart that has begun is completed
            self._grouping.formed(group.members)
            for device in group.members:
                device.free_at = at

    def _new_group(self, place: WorkerGroup, *rest: object) -> VirtualGroup:
        group = self._places[place.prefix] = VirtualGroup(self, place, *rest)  # type: ignore[arg-type]
        return group

    def accepts(self, device: Device) -> bool:
        """See `Phase`; no trainer leaves a group."""
        return True

    def undisturbed(self, device: Device, chunk: int, left: int) -> int:
        """Return one chunk: groups are timed by chunk, and change between chunks."""
        return chunk

    # Members that meet and leave.

    def ask(self, worker: VirtualWorker, method: str, args: Sequence[Any]) -> Future[Any]:
        """Start a call of a group."""
        if method != "join_group":
            return super().ask(worker, method, args)
        assert isinstance(worker, VirtualGroup)
        self._unmet[worker.place.prefix] = worker
        self._meet(worker)
        return worker.joined

    def _meet(self, group: VirtualGroup) -> None:
        """Let a group's members meet if all are free."""
        if group.meeting is not None or any(
            one.worker is not group and one.worker.calls for one in group.members
        ):
            return
        for device in group.members:
            device.worker = group
        restart, regroup = self._grouping.forming(group.members)
        if group.halted:
            self._learn(group)
            return
        if not restart + regroup:
            self._met(group)
            return
        group.meeting = self._loop.at(self._loop.now + restart + regroup, partial(self._met, group))
        if restart:
            for device in group.members:
                self.enter(device.name, "load")
                self._loading.add(device.name)
            self._events.append(self._loop.at(self._loop.now + restart, partial(self._restarted, group)))

    def _restarted(self, group: VirtualGroup) -> None:
        for device in group.members:
            self._loading.discard(device.name)
            if group.place.prefix in self._unmet:
                self.enter(device.name, "regroup")

    def enter(self, worker: str, state: DeviceState) -> None:
        """See `GeneratingFleet`; a member that restarts does not wait for the others yet."""
        if worker not in self._loading:
            super().enter(worker, state)

    def _met(self, group: VirtualGroup) -> None:
        del self._unmet[group.place.prefix]
        self._grouping.formed(group.members)
        group.joined.set_result(None)

    def _meet_all(self) -> None:
        """Let groups meet if their members are free now."""
        for group in list(self._unmet.values()):
            self._meet(group)

    def abort(self, prefix: str) -> None:
        """See `ControlStore`: free the members of a group that is called off."""
        group = self._places[prefix]
        for call in group.calls:
            call.end.cancel()
        group.calls.clear()
        self._meet_all()

    def ended(self, prefix: str) -> None:
        """See `ControlStore`: end the wait for a group; the processes of a static one restart."""
        group = self._places[prefix]
        if self._unmet.pop(prefix, None) is None:
            self._restart(group)
        elif group.meeting is not None:
            group.meeting.cancel()
            self._loading -= {device.name for device in group.members}
        if not group.joined.done():
            group.joined.set_exception(GroupBrokenError(f"{group.name} was called off"))
        self._meet_all()

    def _restart(self, group: VirtualGroup) -> None:
        """Restart the processes of a former static group once it has answered."""
        for device in group.members if self._restarts and not group.calls else ():
            if device.worker is group and device.serves:
                self._remove(device.name)
                self._grouping.gone(device)
                device.worker = device.own
                self.enter(device.name, "load")
                times = self._times.of(device.market)
                self._await(device, self._loop.now + times.start + times.weights)

    def _answer(self, worker: VirtualWorker) -> None:
        assert isinstance(worker, VirtualGroup)
        call = worker.calls[0]
        worker.notices = {one.name: NOTICE if one.noticed else None for one in worker.members}
        if call.until > call.begun:
            worker.step_s.put(self._times_of(worker).step / TICKS_PER_S)
        super()._answer(worker)
        if not worker.calls:
            if worker.device.retiring:
                self._restart(worker)
            self._meet_all()

    # What happens to devices.

    def _groups_of(self, device: SimulatedDevice) -> list[VirtualGroup]:
        """Return the groups whose calls wait for a device."""
        groups = [one for one in (device.worker, *self._unmet.values()) if isinstance(one, VirtualGroup)]
        return [
            group
            for group in dict.fromkeys(groups)
            if device in group.members and (group.calls or not group.joined.done())
        ]

    def warn(self, device: SimulatedDevice) -> None:
        """Stop the members at the end of their current denoising step; the others form another group."""
        super().warn(device)
        if device.device.notice is not None:
            self._changed()

    def halt(self, device: SimulatedDevice) -> None:
        """Halt the group of a device; its members stay busy until the run knows of the loss."""
        for group in self._groups_of(device):
            if group.meeting is not None:
                group.meeting.cancel()
        if device.worker.calls or device.coming is not None:
            super().halt(device)

    def awaits(self, device: SimulatedDevice) -> bool:
        """See `PhaseUnderWay`."""
        return device.coming is not None or bool(self._groups_of(device))

    def fail_calls(self, device: SimulatedDevice) -> None:
        """Fail the calls of a device's groups."""
        groups, error = self._groups_of(device), WorkerLostError(f"{device.name} is gone")
        self._grouping.gone(device)
        for group in {*groups, *self._unmet.values()}:  # its call may have failed with another member
            if device in group.members:
                group.failures[device.name] = error
        super().fail_calls(device)
        for group in groups:
            if not group.joined.done():
                group.joined.set_exception(error)


class _StaticFleet(GroupedFleet):
    """Groups that stay together from phase to phase, and restart cold if they change."""

    def __init__(self, grouping: Grouping, *rest: Any) -> None:
        super().__init__(*rest)
        self._grouping = grouping

    def _best_layout(self, places: Mapping[str, str], standing: Sequence[Group]) -> Layout:
        """Return the standing groups, and new ones of devices that are in none."""
        if self._planned is None:
            return plan_layout(places, self._step_s, self._grouping.started(places))
        stay = [group for group in standing if group.intact(places)]
        # The other members of a group that does not stay restart first.
        taken = {member for group in standing for member in group.members}
        taken |= {name for name, group in self._former.items() if group.open_calls}
        free = {name: instance for name, instance in places.items() if name not in taken}
        return (*stay, *plan_layout(free, self._step_s))
