"""The number of devices that share a sample in a simulated run, and the time to form their groups. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from gpu_runtime.scheduling.degree_choice import StepTimeTable
from gpu_runtime.scheduling.group_layout import Group, GroupRegistry
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.simulator.devices import SimulatedDevice
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.simulated_run import SimulatedPlan
from storage.config.sequence_parallel import AUTO
from storage.errors import ConfigurationError


class Grouping:
    """A run's grouping of devices, with its registry of groups and its measured times.

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
        self.by_kind = dict.fromkeys(by_kind, by_kind["rollout"]) if static else dict(by_kind)
        """Degree of each kind of request."""
        self._group_of: dict[str, tuple[str, ...]] = {}  # by device, if groups are static
        if static and AUTO in self.by_kind.values():
            raise ConfigurationError(
                "static groups have a fixed degree, but sequence_parallel.rollout is auto; set it to a number"
            )
        for kind, degree in self.by_kind.items():
            is_done = kind != RequestKind.EXPLORE or plan.strategy.drafts
            if is_done and degree not in (AUTO, *times.degrees):
                raise ConfigurationError(
                    f"sequence_parallel.{kind} is {degree}, but step times are known only for degrees "
                    f"{', '.join(map(str, times.degrees))}"
                )
        if any(map(self.shares, RequestKind)) and (alone := plan.done_alone):
            raise ConfigurationError(
                f"{alone} is simulated only for devices that work alone; set all degrees of "
                "sequence_parallel to 1"
            )

    def shares(self, kind: RequestKind) -> bool:
        """Return True if several devices may share a request of a kind."""
        return self.by_kind[kind] != 1

    def started(self, devices: Mapping[str, str]) -> list[Group]:
        """Return the static groups in which devices' processes started."""
        begun = dict.fromkeys(names for name, names in self._group_of.items() if name in devices)
        return [Group(devices[next(n for n in names if n in devices)], names) for names in begun]

    def forming(self, members: Sequence[SimulatedDevice]) -> tuple[int, int]:
        """Return the ticks until devices form a group: to restart cold, if they have to, and to meet."""
        names = tuple(device.name for device in members)
        times = [self._times.of(device.market) for device in members]
        regroup = max(each.regroup for each in times) if len(names) > 1 else 0
        if not self.static:
            return 0, regroup
        began = [self._group_of.get(name) for name in names]
        if all(other == names for other in began):
            return 0, 0
        return max(each.start + each.weights for each in times) if any(began) else 0, regroup

    def formed(self, members: Sequence[SimulatedDevice]) -> None:
        """Record that devices have formed a group, which matters only if groups are static."""
        names = tuple(device.name for device in members)
        if self.static:
            self._group_of |= dict.fromkeys(names, names)

    def gone(self, device: SimulatedDevice) -> None:
        """Forget the group of a device that is lost or restarts."""
        self._group_of.pop(device.name, None)

    def memory(self, kind: RequestKind) -> Hashable:
        """Return the state left by earlier phases that a phase depends on."""
        if self.static:
            return tuple(sorted(self._group_of.items()))
        return self.step_times.state() if self.by_kind[kind] == AUTO else ()

    def key(self, kind: RequestKind, devices: Sequence[SimulatedDevice]) -> Hashable:
        """Return everything that a phase depends on in its devices' names, instances and past groups."""
        if not self.shares(kind):
            return ()
        order = sorted(range(len(devices)), key=lambda number: devices[number].name)
        return tuple(order), tuple(device.instance for device in devices), self.memory(kind)
