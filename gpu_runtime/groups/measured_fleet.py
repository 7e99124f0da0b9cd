"""The fleet as groups whose degree measured times choose: `sequence_parallel.rollout = "auto"`.

A phase begins with the groups that the times of the phases before speak for. It looks again when a lease has
ended, before the next one begins, and when a degree's time becomes known; so groups grow where fewer batches
are left than devices. Whether a change pays is decided by `choose_layout`, and it is made as any planned one:
between chunks, no step is done again.
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
        fleet: the devices.
        version: of the weights that they generate with.
        step_times: the run's measured times for requests of this class; what this phase measures is added.
        degrees: by how many devices samples may be shared, 1 among them, rising.
        rendezvous: where members meet.
        registry: the run's epochs.
        instance_of: where a device is.
        lease_s: seconds without a word after which a device counts as hung.
        clock: seconds, of a clock that never goes back.
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
        """Whether other groups would end the phase clearly sooner, by what is left of it."""
        self._left = left
        look, self._look = self._look or freed, False
        if super().regroups(left, freed):
            return True
        if not look:
            return False
        wanted = {group.members for group in self._layout(self._usable()).groups}
        return wanted != {place.members for place in self._registry.groups}

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """What the providers of a group's members say now, and how long its chunk took."""
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
        """At any time, once it is known what the phase has to do."""
        return self._left is not None

    def _layout(self, usable: Mapping[str, Device]) -> Layout:
        """The groups that end the phase soonest."""
        assert self._left is not None, "the loop says what is left before groups are planned"
        return choose_layout(
            self._places(usable), self._standing, self._left(), self._step_times, self._degrees
        )

    def _form(self, place: WorkerGroup, devices: Sequence[Device]) -> None:
        self._asked_at[place] = self._clock()
        super()._form(place, devices)

    def _begin(self, group: GeneratingGroup) -> None:
        """A group is formed: what that took since its last member was free."""
        super()._begin(group)
        since = max(
            self._asked_at.pop(group.place),
            *(self._busy_until.get(device.name, 0.0) for device in group.devices),
        )
        if len(group.devices) > 1:
            self._step_times.note_regroup(self._clock() - since, group.place.members)
