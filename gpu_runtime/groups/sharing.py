"""How devices share each phase's samples: with a fixed degree, or one chosen by measured times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError
from contextlib import contextmanager
from queue import Empty

from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import GeneratingFleet, Phase
from gpu_runtime.groups.grouped_fleet import GeneratingGroup, GroupedFleet, group_of
from gpu_runtime.scheduling.degree_choice import StepTimeTable, choose_layout
from gpu_runtime.scheduling.group_layout import Group, GroupRegistry, Layout, WorkerGroup, large_first
from gpu_runtime.scheduling.requests import WeightsVersion, WorkLeft
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.spot.notices.notice import Notice
from storage.config.sequence_parallel import AUTO, SequenceParallelConfig
from storage.errors import ConfigurationError, WorkerLostError
from storage.record.records import StepTimeRecord


class Sharing:
    """Sharing by groups of the fleet, for phases that share samples; others get the fleet as it is.

    All of a run's requests are alike, because rollouts and evaluations have the same resolution and batches.
    So one table holds the run's measured times.

    Args:
        lease_s: seconds without an answer after which a device counts as hung.
        degrees_up_to: returns the possible degrees of the model's sequences up to a number.
        rendezvous: store at which groups meet; None if each device works alone.
    """

    def __init__(
        self,
        settings: SequenceParallelConfig,
        lease_s: float,
        request_class: str,
        degrees_up_to: Callable[[int], tuple[int, ...]],
        rendezvous: ControlStore | None,
        collector: Collector,
    ) -> None:
        self._settings = settings
        self._lease_s = lease_s
        self._class = request_class
        self._degrees_up_to = degrees_up_to
        self._degrees: tuple[int, ...] = ()
        self._registry = GroupRegistry()
        self._step_times = StepTimeTable()
        self._rendezvous = rendezvous
        self._instances: dict[str, str] = {}
        self._collector = collector
        collector.book_at_close(self._book_step_times)

    @contextmanager
    def phase(self, fleet: GeneratingFleet, phase: Phase) -> Iterator[GeneratingFleet]:
        """Provide a phase's grouped fleet within a context; the fleet itself for degree 1.

        Raises:
            ConfigurationError: if the model's sequences do not divide by the degree.
        """
        degree = self._settings.by_kind[phase.kind]
        if self._settings.largest > 1 and not self._degrees:
            # Ask in a run's first phase, which never drafts; later the trainer may be training.
            self._degrees = self._degrees_up_to(self._settings.largest)
        if degree == 1:
            yield fleet
            return
        assert self._rendezvous is not None, "some degree is above 1"
        rest = self._rendezvous, self._registry, self._instance_of, self._lease_s
        if degree == AUTO:
            grouped = MeasuredFleet(fleet, phase.version, self._step_times, self._degrees, *rest)
        elif degree in self._degrees:
            grouped = GroupedFleet(fleet, phase.version, large_first(self._degrees, degree), *rest)
        else:
            raise ConfigurationError(
                f"sequence parallelism: the model's sequences do not divide by degree {degree}; set "
                "sequence_parallel.rollout, evaluate and explore to "
                f"{', '.join(map(str, self._degrees))}"
            )
        try:
            yield grouped
        finally:
            grouped.close()
            with self._collector.writing() as since:
                since.groups += grouped.records

    def _instance_of(self, device: Device) -> str:
        """Return the instance of a device, by its name; the device is asked only once."""
        if device.name not in self._instances:
            try:
                answer = device.actor.instance().result(timeout=self._lease_s)
            except (WorkerLostError, TimeoutError):
                return device.name  # alone; its next call raises the problem
            self._instances[device.name] = answer
        return self._instances[device.name]

    def _book_step_times(self) -> None:
        """Record the seconds of a denoising step for degrees timed since the last call."""
        changed = self._step_times.take_changed()
        with self._collector.writing() as since:
            since.step_times += [
                StepTimeRecord(self._class, degree, self._step_times.known[degree], chunks)
                for degree, chunks in changed.items()
            ]


class MeasuredFleet(GroupedFleet):
    """A fleet whose devices work in the groups that end the phase soonest, for one phase of generating.

    A phase begins with the best groups according to earlier phases' times. The choice is reviewed between
    leases and when a degree's time becomes known, so groups grow when fewer batches than devices are left.
    `choose_layout` decides whether a change pays off. Like any planned change, it happens between chunks
    and repeats no step.

    Args:
        step_times: the run's measured times for such requests; this phase adds its own.
        degrees: numbers of devices that may share a sample, ascending, including 1.
    """

    def __init__(
        self,
        fleet: GeneratingFleet,
        version: WeightsVersion,
        step_times: StepTimeTable,
        degrees: Sequence[int],
        rendezvous: ControlStore,
        registry: GroupRegistry,
        instance_of: Callable[[Device], str],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        new_group: Callable[..., GeneratingGroup] = GeneratingGroup,
    ) -> None:
        super().__init__(fleet, version, {}, rendezvous, registry, instance_of, lease_s, new_group)
        self._step_times = step_times
        self._degrees = tuple(degrees)
        self._clock = clock
        self._left: Callable[[], WorkLeft] | None = None
        self._chosen: tuple[tuple[object, ...], Layout] | None = None  # all that the last choice depends on
        self._look = True
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
        wanted = {group.members for group in self._layout(self._usable())}
        return wanted != {place.members for place in self._registry.groups}

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """Apply the current notices of a group's members, and record its chunks' times."""
        group = group_of(device)
        before = self._step_times.known.keys()
        for member in group.devices:
            self._busy_until[member.name] = self._clock()
        try:
            while True:
                step_s = group.step_s.get_nowait()
                self._step_times.note(len(group.devices), step_s, first=not group.timed)
                group.timed = True
        except Empty:
            pass
        self._look = self._look or self._step_times.known.keys() != before
        super().on_notice(device, notice)

    def _is_due(self, usable: Mapping[str, Device]) -> bool:
        """Return True once the work of the phase is known."""
        return self._left is not None

    def _best_layout(self, places: Mapping[str, str], standing: Sequence[Group]) -> Layout:
        """Return the groups that end the phase soonest, recomputed only when an input changed."""
        assert self._left is not None, "the loop says what is left before groups are planned"
        left, times = self._left(), self._step_times
        given = places, standing, left, times.known, times.regroup_s
        if self._chosen is None or self._chosen[0] != given:
            self._chosen = given, choose_layout(places, standing, left, times, self._degrees)
        return self._chosen[1]

    def _form(self, place: WorkerGroup, devices: Sequence[Device]) -> None:
        self._asked_at[place] = self._clock()
        super()._form(place, devices)

    def _begin(self, group: GeneratingGroup) -> None:
        """Begin with a formed group, and record the time since its last member was free."""
        super()._begin(group)
        since = max(
            self._asked_at.pop(group.place),
            *(self._busy_until.get(device.name, 0.0) for device in group.devices),
        )
        if len(group.devices) > 1:
            self._step_times.note_regroup(self._clock() - since, group.place.members)
