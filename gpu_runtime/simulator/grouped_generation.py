"""A generation phase whose samples are shared by groups of devices, under the virtual clock. Pure.

As in a live run, groups are planned when devices join, are lost or get a notice; where measured times choose
degrees, also when a lease ends and when a degree's time becomes known. A group that a plan dissolves finishes
the chunks that it has begun; one that loses a member is broken, and its batch continues elsewhere from the
last commit.

No live run has static groups, the baseline for elastic ones. If such a group loses a member, the
processes of the others restart: they load the model and take the weights before they form another group with
devices that are in none by then. Groups persist between phases; at the beginning of a phase, the processes of
a group that should change restart, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gpu_runtime.scheduling.group_layout import Group, Layout, WorkerGroup
from gpu_runtime.scheduling.requests import Lease, UnderWay, WorkLeft
from gpu_runtime.simulator.devices import Flight, Holder, SimulatedDevice, SimulatedGroup
from gpu_runtime.simulator.generation import GenerationPhase, PhaseSetup
from gpu_runtime.simulator.virtual_time import Event

_CALLS_AHEAD = 2
"""Chunks that a group has begun at a time, as the dispatcher of a live run starts them; one for drafts."""


class GroupedPhase(GenerationPhase):
    """Devices take the phase's weights, form groups that pull batches, and form others as devices change."""

    def __init__(self, setup: PhaseSetup) -> None:
        super().__init__(setup)
        grouping, work = setup.grouping, setup.work
        self._registry = grouping.registry
        self._measured, self._static = grouping.measured(work.kind), grouping.static
        self._pool: dict[str, SimulatedDevice] = {}  # those that hold the weights
        self._groups: dict[WorkerGroup, SimulatedGroup] = {}
        self._leaving: dict[str, SimulatedGroup] = {}  # devices that still have chunks of a former group
        self._broken: list[WorkerGroup] = []
        self._planned: frozenset[str] | None = None
        self._plan_due: Event | None = None
        self._ahead = 1 if self._drafts else _CALLS_AHEAD

    def on_notice(self, device: SimulatedDevice) -> None:
        """Stop the members at the end of their current denoising step; the others form another group."""
        group = self._group_of(device)
        if group is not None and group.flight is not None:
            if group.flight.halted is None:
                self._stop(group)
        elif device.name in self._pool:
            self._plan_soon()

    def on_gone(self, device: SimulatedDevice) -> None:
        """Halt a device's group; its members stay busy until the run knows of the loss."""
        group = self._group_of(device)
        if group is not None:
            self._stop_timing(group)  # no chunk of it ends any more
        if group is None:
            self._pool.pop(device.name, None)
            if device.coming is not None:
                device.coming.cancel()
        elif group.flight is not None:
            flight = group.flight
            flight.end.cancel()
            flight.halted = self._loop.now if flight.halted is None else flight.halted
        elif group.forming is not None:
            group.forming.cancel()
        else:
            self._idle.pop(group.name, None)
            self._pool.pop(device.name)
            if len(group.members) > 1:  # else no call fails, and the next phase notices
                self._await_loss(device)

    def on_lost(self, device: SimulatedDevice) -> None:
        """Break the group of a lost device: its batch goes on elsewhere, and the others form new groups."""
        group = self._group_of(device)
        self._pool.pop(device.name, None)
        self._grouping.gone(device)
        if group is None:  # it was taking the weights, or its group has already lost another member
            self._busy -= 1
        else:
            self._break(group, device)

    def _on_ready(self, device: SimulatedDevice) -> None:
        self._pool[device.name] = device
        self._enter(device, "idle")
        self._plan_soon()

    @property
    def _all_groups(self) -> list[SimulatedGroup]:
        """The current groups, and former ones that still have chunks."""
        return list(dict.fromkeys((*self._groups.values(), *self._leaving.values())))

    def _group_of(self, device: SimulatedDevice) -> SimulatedGroup | None:
        """Return the group whose calls a device executes, or waits to execute."""
        if device.name in self._leaving:
            return self._leaving[device.name]
        place = self._registry.group_of.get(device.name)
        return None if place is None else self._groups.get(place)

    def _await_loss(self, device: SimulatedDevice) -> None:
        """Let the phase wait for a lost device, as the run does not know of the loss yet."""
        assert device.known_gone is not None, "it is gone"
        device.coming = Event(device.known_gone, lambda: None)
        self._busy += 1

    def _break(self, group: SimulatedGroup, lost: SimulatedDevice) -> None:
        self._plan_soon()  # first, so that the groups of the plan pull the batches that wait then
        flight = group.flight
        if group.place in self._groups:
            del self._groups[group.place]
            self._broken.append(group.place)
        group.over = True
        self._busy -= 1
        lost.coming = None
        if flight is not None:
            self._take_back(group, flight)
        elif group.forming is not None:
            self._call_off(group)
        members = [d for d in group.members if self._leaving.get(d.name, group) is group and d is not lost]
        for device in group.members:
            if self._leaving.get(device.name) is group:
                del self._leaving[device.name]
        for device in members:
            if device.known_gone is None:
                self._survive(device)
            else:
                self._pool.pop(device.name, None)
                if device.coming is None:
                    self._await_loss(device)

    def _survive(self, device: SimulatedDevice) -> None:
        """Free a device of a broken group for another one; a static one restarts first."""
        if self._static and not device.noticed:
            self._restart(device)
            return
        self._enter(device, "idle" if device.noticed else "regroup")
        self._release(device)

    def _call_off(self, group: SimulatedGroup) -> None:
        """Cancel the forming of a group."""
        assert group.forming is not None
        group.forming.cancel()
        group.forming = None
        for device in group.members:
            device.coming = None

    def _plan_soon(self) -> None:
        """Plan once all events of this tick have happened."""
        if self._plan_due is None:
            self._plan_due = self._loop.at(self._loop.now, self._plan)
            self._busy += 1

    def _plan(self) -> None:
        """Switch to the groups that the current devices should form; idle groups pull."""
        self._plan_due = None
        self._busy -= 1
        usable = {name: d for name, d in self._pool.items() if not (d.noticed or self._is_away(d))}
        if self._measured or frozenset(usable) != self._planned or self._broken:
            self._follow(usable)
        for _ in range(len(self._idle)):
            self._pull(self._idle.popitem(last=False)[1])

    def _layout(self, devices: Mapping[str, str], standing: Sequence[Group]) -> Layout:
        """Return the groups that devices should form."""
        kind, grouping = self._work.kind, self._grouping
        if not self._static:
            left = self._work_left() if self._measured else None
            return grouping.layout(kind, devices, standing, left)
        if self._planned is None:
            return grouping.layout(kind, devices, grouping.started(devices), None)
        stay = [group for group in standing if all(member in devices for member in group.members)]
        # The other members of a group that does not stay restart first.
        taken = {member for group in standing for member in group.members} | self._leaving.keys()
        free = {name: instance for name, instance in devices.items() if name not in taken}
        return Layout((*stay, *grouping.layout(kind, free, (), None).groups), ())

    def _work_left(self) -> WorkLeft:
        """Return the work left in the phase: the steps of each batch that waits or is under way."""
        steps = self._work.steps
        flights = {group.name: group.flight for group in self._all_groups if group.flight is not None}
        leased = {flight.lease.requests[0] for flight in flights.values()}
        commits = [self._scheduler.committed(n) for n in range(self._first, self._next) if n not in leased]
        waiting = sorted(steps - commit.step for commit in commits if commit is not None)
        under_way: dict[str, UnderWay] = {}
        for name, flight in flights.items():
            chunks = (self._loop.now - flight.since) // (flight.chunk * flight.step)
            done = min(flight.lease.steps, flight.lease.step + chunks * flight.chunk)
            under_way[name] = UnderWay(flight.lease.steps - done, max(0, self._begun(flight) - done))
        return WorkLeft((*waiting, *[steps] * (self._last - self._next)), under_way)

    def _follow(self, usable: dict[str, SimulatedDevice]) -> None:
        devices = {name: device.instance for name, device in usable.items()}
        standing = [
            Group(self._groups[place].members[0].instance, place.members)
            for place in self._registry.groups
            if place in self._groups
        ]
        change = self._registry.follow(self._layout(devices, standing), self._broken)
        self._planned, self._broken = frozenset(usable), []
        if change is None:
            return
        for place in change.dissolved:
            if place in self._groups:
                self._retire(self._groups.pop(place))
        for place in change.formed:
            group = SimulatedGroup(place, [usable[name] for name in place.members])
            self._groups[place] = group
            self._form(group)

    def _retire(self, group: SimulatedGroup) -> None:
        """End a group after the chunks that it has begun."""
        group.over = True
        self._idle.pop(group.name, None)
        flight = group.flight
        if flight is not None:
            self._leaving |= {device.name: group for device in group.members}
            if flight.until is None and flight.halted is None:
                self._hand_back_after(group, flight, self._begun(flight) - flight.lease.step)
            return
        if group.forming is not None:
            self._call_off(group)
            self._busy -= 1
            for device in group.members:
                if device.known_gone is not None:
                    self._await_loss(device)
        for device in group.members:
            if device.known_gone is None and device.name not in self._leaving:
                self._enter(device, "idle")
        if group.formed:
            self._restart_members(group)

    def _restart_members(self, group: SimulatedGroup) -> None:
        """Restart the processes of a former group, where groups are static."""
        for device in group.members:
            if self._static and device.known_gone is None and not device.noticed:
                self._restart(device)

    def _restart(self, device: SimulatedDevice) -> None:
        """Restart the process of a device, which is in no group then."""
        self._pool.pop(device.name, None)
        self._grouping.gone(device)
        self._enter(device, "load")
        self._busy += 1
        times = self._times.of(device.market)
        again = times.start + times.weights
        device.coming = self._loop.at(self._loop.now + again, partial(self._ready, device))

    def _begun(self, flight: Flight) -> int:
        """Return the denoising step at the end of the chunks begun."""
        if flight.until is not None:
            return flight.until
        chunks = self._loop.now - flight.since
        chunks //= flight.chunk * flight.step
        return min(flight.lease.steps, flight.lease.step + (chunks + self._ahead) * flight.chunk)

    def _form(self, group: SimulatedGroup) -> None:
        """Form a group once its last member is free, after a restart of the members if one is needed."""
        free = [device for device in group.members if device.name not in self._leaving]
        waits = len(free) < len(group.members)
        restart, regroup = self._grouping.forming(group.members)
        for device in free:
            if waits or regroup:
                self._enter(device, "regroup")
        if waits:
            return
        gone = [device for device in free if device.known_gone is not None]
        if not (restart or regroup or gone):
            self._on_formed(group)
            return
        self._busy += 1
        at = self._loop.now + restart
        if restart:
            for device in free:
                self._enter(device, "load")
        # From now on, this group waits for their loss.
        self._busy -= sum(device.coming is not None for device in gone)
        if gone:
            group.forming = Event(at + regroup, lambda: None)
        elif restart and regroup:
            group.forming = self._loop.at(at, partial(self._meet, group, regroup))
        else:
            group.forming = self._loop.at(at + regroup, partial(self._on_formed, group))
        for device in free:
            device.coming = group.forming

    def _meet(self, group: SimulatedGroup, regroup: int) -> None:
        """Let members that restarted and have loaded meet."""
        group.forming = self._loop.at(self._loop.now + regroup, partial(self._on_formed, group))
        for device in group.members:
            device.coming = group.forming
            self._enter(device, "regroup")

    def _on_formed(self, group: SimulatedGroup) -> None:
        if self._measured:
            self._plan_soon()
        if group.forming is not None:
            group.forming = None
            self._busy -= 1
        for device in group.members:
            device.coming = None
        group.formed = True
        self._grouping.formed(group.members)
        if group.noticed:
            self._plan_soon()
        else:
            self._pull(group)

    def _release(self, device: SimulatedDevice) -> None:
        """Form the group that waits for a device, which is free now."""
        place = self._registry.group_of.get(device.name)
        group = None if place is None else self._groups.get(place)
        if group is not None and not group.formed and group.forming is None:
            self._form(group)

    def _may_pull(self, holder: Holder) -> bool:
        return holder.serves and super()._may_pull(holder)

    def _begin(self, holder: Holder, lease: Lease[int]) -> None:
        super()._begin(holder, lease)
        assert isinstance(holder, SimulatedGroup)
        if self._measured:
            self._time_chunk(holder)

    def _time_chunk(self, group: SimulatedGroup) -> None:
        """Schedule the end of the next chunk, to time its steps."""
        flight = group.flight
        if flight is None or flight.halted is not None:
            return
        done = (self._loop.now - flight.since) // flight.step
        steps = (flight.until or flight.lease.steps) - flight.lease.step
        if done < steps:
            at = flight.since + min(steps, done + flight.chunk) * flight.step
            group.chunk_ends = self._loop.at(at, partial(self._on_chunk, group))

    def _on_chunk(self, group: SimulatedGroup) -> None:
        """Time the steps of a chunk that has ended; plan again once a degree's time becomes known."""
        assert group.flight is not None, "chunks end with the lease"
        group.chunk_ends = None
        table = self._grouping.step_times
        known = table.known.keys()
        table.note(len(group.members), self._times.step_seconds(group.flight.step), first=not group.timed)
        group.timed = True
        if table.known.keys() != known:
            self._plan_soon()
        self._time_chunk(group)

    def _stop_timing(self, group: SimulatedGroup) -> None:
        if group.chunk_ends is not None:
            group.chunk_ends.cancel()
            group.chunk_ends = None

    def _go_on(self, holder: Holder) -> None:
        assert isinstance(holder, SimulatedGroup)
        self._after_lease(holder)

    def _stand_by(self, holder: Holder) -> None:
        assert isinstance(holder, SimulatedGroup)
        self._after_lease(holder)
        self._wake()

    def _after_lease(self, group: SimulatedGroup) -> None:
        """Let a free group go on, wait for the plan, or dissolve."""
        self._stop_timing(group)
        if self._measured:
            self._plan_soon()
        if group.over:
            for device in group.members:
                del self._leaving[device.name]
                self._enter(device, "idle")
            for device in group.members:
                self._release(device)
            self._restart_members(group)
        elif group.noticed:
            self._enter(group, "idle")
            self._plan_soon()
        elif self._measured:
            self._enter(group, "idle")
            self._idle[group.name] = group  # the plan, due at this tick, lets it pull
        else:
            self._pull(group)

    def _wake(self) -> None:
        if self._plan_due is None:
            super()._wake()

    def _end(self) -> None:
        if self._plan_due is not None:
            self._plan_due.cancel()
        begun = {group: group.forming.at for group in self._groups.values() if group.forming is not None}
        for group in self._all_groups:
            self._stop_timing(group)
            if group.forming is not None:
                self._call_off(group)
            if group.flight is not None and len(group.members) > 1:
                # Dropped: no member waits for another one any more.
                group.flight.end.cancel()
                self._scheduler.drop(group.flight.lease.requests)
                group.flight = None
        self._registry.follow(Layout((), ()))
        super()._end()
        for group, at in begun.items() if self._static else ():  # a restart that has begun is completed
            self._grouping.formed(group.members)
            for device in group.members:
                device.free_at = at
