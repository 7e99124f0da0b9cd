"""The groups of devices that share a simulated run's samples, and the time to form them. Pure.

The groups are chosen by the functions of a live run: `plan_layout` where a degree is fixed, `choose_layout`
where measured times choose it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from gpu_runtime.scheduling.degree_choice import StepTimeTable, choose_layout
from gpu_runtime.scheduling.group_layout import Group, GroupRegistry, Layout, large_first, plan_layout
from gpu_runtime.scheduling.requests import RequestKind, WorkLeft
from gpu_runtime.simulator.devices import SimulatedDevice
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.simulated_run import SimulatedPlan
from storage.config.sequence_parallel import AUTO
from storage.errors import ConfigurationError


class Grouping:
    """The grouping of devices over a whole run, with its registry of groups and its measured times.

    Args:
        by_kind: degree of each kind of request, as in the settings; `AUTO` lets measured times choose.
        times: times of the workload; a degree without a time is not used.
        plan: plan of the run. With static groups all kinds have the rollout's degree.

    Raises:
        ConfigurationError: a degree in use has no time; static groups have the degree `AUTO`; or the plan
            needs devices that work alone, but they share samples.
    """

    def __init__(self, by_kind: Mapping[str, int], times: WorkloadTimes, plan: SimulatedPlan) -> None:
        self.registry = GroupRegistry()
        self.step_times = StepTimeTable()
        self.static = static = plan.static_groups
        self._times = times
        self._by_kind = dict.fromkeys(by_kind, by_kind["rollout"]) if static else dict(by_kind)
        self._together: dict[str, tuple[str, ...]] = {}  # where groups are static: each device's group
        if static and AUTO in self._by_kind.values():
            raise ConfigurationError(
                "static groups have a fixed degree, but sequence_parallel.rollout is auto; set it to a number"
            )
        for kind, degree in self._by_kind.items():
            is_done = kind != RequestKind.EXPLORE or plan.strategy.drafts
            if is_done and degree not in (AUTO, *times.degrees):
                raise ConfigurationError(
                    f"sequence_parallel.{kind} is {degree}, but a step's time is known of degrees "
                    f"{', '.join(map(str, times.degrees))} only"
                )

        if any(map(self.shares, RequestKind)) and (alone := plan.done_alone):
            raise ConfigurationError(
                f"{alone} is simulated for devices that work alone; set all degrees of sequence_parallel to 1"
            )

    def shares(self, kind: RequestKind) -> bool:
        """Return True if several devices may share a request of a kind."""
        return self._by_kind[kind] != 1

    def measured(self, kind: RequestKind) -> bool:
        """Return True if measured times choose the degree of a kind."""
        return self._by_kind[kind] == AUTO

    def layout(
        self, kind: RequestKind, devices: Mapping[str, str], before: Sequence[Group], left: WorkLeft | None
    ) -> Layout:
        """Return the groups of devices, by name → instance; measured times choose by the work left.

        Args:
            kind: kind of their requests.
            devices: usable devices, with their instances.
            before: the current groups.
            left: work left in the phase, where measured times choose; None where the degree is fixed.
        """
        degrees = self._times.degrees
        if left is not None:
            return choose_layout(devices, before, left, self.step_times, degrees)
        return plan_layout(devices, large_first(degrees, self._by_kind[kind]), before)

    def started(self, devices: Mapping[str, str]) -> list[Group]:
        """Return the groups in which devices' processes started, where groups are static."""
        begun = dict.fromkeys(names for name, names in self._together.items() if name in devices)
        return [Group(devices[next(n for n in names if n in devices)], names) for names in begun]

    def forming(self, members: Sequence[SimulatedDevice]) -> tuple[int, int]:
        """Return the ticks until devices form a group: to restart cold, if they have to, and to meet."""
        names = tuple(device.name for device in members)
        regroup = self._regroup(members) if len(names) > 1 else 0
        if not self.static:
            return 0, regroup
        began = [self._together.get(name) for name in names]
        if all(other == names for other in began):
            return 0, 0
        times = [self._times.of(device.market) for device in members]
        return max(each.start + each.weights for each in times) if any(began) else 0, regroup

    def _regroup(self, members: Sequence[SimulatedDevice]) -> int:
        """Return the ticks until devices have met, by the slowest kind of them."""
        return max(self._times.of(device.market).regroup for device in members)

    def formed(self, members: Sequence[SimulatedDevice]) -> None:
        """Record that devices have formed a group."""
        names = tuple(device.name for device in members)
        if self.static:
            self._together |= dict.fromkeys(names, names)
        elif len(names) > 1:
            self.step_times.note_regroup(self._times.step_seconds(self._regroup(members)), names)

    def gone(self, device: SimulatedDevice) -> None:
        """Forget the group of a device that is lost or restarts."""
        self._together.pop(device.name, None)

    def memory(self, kind: RequestKind) -> Hashable:
        """Return the state left by earlier phases that a phase depends on."""
        if self.static:
            return tuple(sorted(self._together.items()))
        return self.step_times.state() if self.measured(kind) else ()

    def key(self, kind: RequestKind, devices: Sequence[SimulatedDevice]) -> Hashable:
        """Return all that a phase depends on of its devices' names, instances and past groups."""
        if not self.shares(kind):
            return ()
        order = sorted(range(len(devices)), key=lambda number: devices[number].name)
        return tuple(order), tuple(device.instance for device in devices), self.memory(kind)
