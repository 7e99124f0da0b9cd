"""The fleet as groups whose degree is chosen by measured times: `sequence_parallel.rollout = "auto"`.

A phase begins with the best groups by the times of earlier phases. The choice is reviewed when a lease has
ended, before the next one begins, and when a degree's time becomes known; so groups grow when fewer batches
than devices are left. `choose_layout` decides whether a change pays off. Like any planned change, it happens
between chunks, and no step is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import GeneratingFleet
from gpu_runtime.groups.degree_choice import choose_layout
from gpu_runtime.groups.generating_group import GeneratingGroup
from gpu_runtime.groups.grouped_fleet import GroupedFleet, Rendezvous, group_of
from gpu_runtime.groups.layout import Layout
from gpu_runtime.groups.registry import GroupRegistry
from gpu_runtime.groups.step_times import StepTimeTable
from gpu_runtime.scheduling.requests import WeightsVersion, WorkLeft
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from gpu_runtime.spot.notices.notice import Notice


class MeasuredFleet(GroupedFleet):
    """A fleet whose devices work in the groups that end the phase soonest, for one phase of generating.

    Args:
        fleet: devices.
        version: version of the weights that they generate with.
        step_times: measured times of the run for requests of this class; those of this phase are added.
        degrees: numbers of devices that may share a sample, including 1, in rising order.
        rendezvous: place where members meet.
        registry: epochs of the run.
        instance_of: function that returns the instance of a device.
        lease_s: seconds without an answer after which a device counts as hung.
        clock: function that returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        fleet: GeneratingFleet,
        version: WeightsVersion,
        step_times: StepTimeTable,
        degrees: Sequence[int],
        rendezvous: Rendezvous,
        registry: GroupRegistry,
        instance_of: Callable[[Device], str],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(fleet, version, {}, rendezvous, registry, instance_of, lease_s)
        self._step_times = step_times
        self._degrees = tuple(degrees)
        self._clock = clock
        self._left: Callable[[], WorkLeft] | None = None
        self._look = True
        self._timed: set[GeneratingGroup] = set()
        self._asked_at: dict[WorkerGroup, float] = {}
        self._busy_until: dict[str, float] = {}

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """Return True if other groups would end the phase clearly sooner, or devices were added."""
        self._left = left
        look, self._look = self._look or freed, False
        if super().regroups(left, freed):
            return True
        if not look:
            return False
        wanted = {group.members for group in self._layout(self._usable()).groups}
        return wanted != {place.members for place in self._registry.groups}

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """Apply what the providers of a group's members say now, and record the times of its chunks."""
        group = group_of(device)
        before = self._step_times.known.keys()
        for member in group.devices:
            self._busy_until[member.name] = self._clock()
        try:
            while True:
                step_s = group.step_s.get_nowait()
                self._step_times.note(len(group.devices), step_s, first=group not in self._timed)
                self._timed.add(group)
        except Empty:
            pass
        self._look = self._look or self._step_times.known.keys() != before
        super().on_notice(device, notice)

    def _is_due(self, usable: Mapping[str, Device]) -> bool:
        """Return True once the work of the phase is known."""
        return self._left is not None

    def _layout(self, usable: Mapping[str, Device]) -> Layout:
        """Return the groups that end the phase soonest."""
        assert self._left is not None, "the loop says what is left before groups are planned"
        return choose_layout(
            self._places(usable), self._standing, self._left(), self._step_times, self._degrees
        )

    def _form(self, place: WorkerGroup, devices: Sequence[Device]) -> None:
        self._asked_at[place] = self._clock()
        super()._form(place, devices)

    def _begin(self, group: GeneratingGroup) -> None:
        """Begin with a group that is formed, and record its time since its last member was free."""
        super()._begin(group)
        since = max(
            self._asked_at.pop(group.place),
            *(self._busy_until.get(device.name, 0.0) for device in group.devices),
        )
        if len(group.devices) > 1:
            self._step_times.note_regroup(self._clock() - since, group.place.members)
