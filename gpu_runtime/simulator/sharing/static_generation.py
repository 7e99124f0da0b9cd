"""A generation phase by groups that stay as they started: the baseline for elastic groups. Pure.

No live run supports it. If a group loses a member, the processes of the others restart: they load the model
and take the weights before they form another group with devices that are in none by then. Groups persist
between phases; at the beginning of a phase, the processes of a group that should change restart, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gpu_runtime.groups.layout import Group, Layout
from gpu_runtime.simulator.devices import SimulatedDevice, SimulatedGroup
from gpu_runtime.simulator.sharing.grouped_generation import GroupedPhase


class StaticPhase(GroupedPhase):
    """Devices form groups that only a loss, a notice, or the beginning of a phase changes."""

    def _layout(self, devices: Mapping[str, str], standing: Sequence[Group]) -> Layout:
        kind = self._work.kind
        if self._planned is None:
            return self._grouping.fixed(kind, devices, self._grouping.groups_of(devices))
        stay = [group for group in standing if all(member in devices for member in group.members)]
        # The other members of a group that does not stay restart first.
        taken = {member for group in standing for member in group.members} | self._leaving.keys()
        free = {name: instance for name, instance in devices.items() if name not in taken}
        return Layout((*stay, *self._grouping.fixed(kind, free, ()).groups), ())

    def _survive(self, device: SimulatedDevice) -> None:
        if device.noticed:
            super()._survive(device)
        else:
            self._restart(device)

    def _retire(self, group: SimulatedGroup) -> None:
        super()._retire(group)
        if group.formed and group.flight is None:
            self._restart_members(group)

    def _after_lease(self, group: SimulatedGroup) -> None:
        super()._after_lease(group)
        if group.over:
            self._restart_members(group)

    def _restart_members(self, group: SimulatedGroup) -> None:
        for device in group.members:
            if device.known_gone is None and not device.noticed:
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

    def _end(self) -> None:
        begun = {group: group.forming.at for group in self._groups.values() if group.forming is not None}
        super()._end()
        for group, at in begun.items():  # a restart that has begun is completed
            self._grouping.formed(group.members)
            for device in group.members:
                device.free_at = at
