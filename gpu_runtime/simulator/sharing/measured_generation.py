"""A generation phase whose groups are chosen by measured times, under the virtual clock. Pure.

As in a live run, groups are also rechosen when a lease ends, before the next one begins, and when a degree's
time becomes known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpu_runtime.groups.layout import Group, Layout
from gpu_runtime.scheduling.requests import Lease, UnderWay, WorkLeft
from gpu_runtime.simulator.devices import Flight, Holder, SimulatedDevice, SimulatedGroup
from gpu_runtime.simulator.sharing.grouped_generation import GroupedPhase


class MeasuredPhase(GroupedPhase):
    """Devices form the groups that finish the phase soonest, by the measured times of chunks.

    Args:
        parts: arguments of `GroupedPhase`.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._asked: set[int] = set()  # batches that are not delivered

    def on_gone(self, device: SimulatedDevice) -> None:
        """See `GroupedPhase.on_gone`; no chunk of the device's group ends any more."""
        group = self._group_of(device)
        if group is not None:
            self._stop_timing(group)
        super().on_gone(device)

    def _is_due(self, usable: Mapping[str, SimulatedDevice]) -> bool:
        return True

    def _layout(self, devices: Mapping[str, str], standing: Sequence[Group]) -> Layout:
        return self._grouping.chosen(devices, standing, self._work_left())

    def _on_formed(self, group: SimulatedGroup) -> None:
        self._plan_soon()
        super()._on_formed(group)

    def _begin(self, holder: Holder, lease: Lease[int]) -> None:
        super()._begin(holder, lease)
        assert isinstance(holder, SimulatedGroup)
        self._time_chunk(holder)

    def _after_lease(self, group: SimulatedGroup) -> None:
        self._stop_timing(group)
        self._plan_soon()
        super()._after_lease(group)

    def _take_next(self, group: SimulatedGroup) -> None:
        self._enter(group, "idle")
        self._idle[group.name] = group  # the plan, due at this tick, lets it pull

    def _deliver(self, holder: Holder) -> None:
        assert holder.flight is not None
        self._asked.discard(holder.flight.lease.requests[0])
        super()._deliver(holder)

    def _ask_for(self, batches: int) -> None:
        self._asked.update(range(self._next, self._next + batches))
        super()._ask_for(batches)

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
        assert group.flight is not None, "chunks end with the lease"
        group.chunk_ends = None
        self._note(group, group.flight.step)
        self._time_chunk(group)

    def _note(self, group: SimulatedGroup, step: int) -> None:
        known = self._grouping.step_times.known.keys()
        step_s = self._times.step_seconds(step)
        self._grouping.step_times.note(len(group.members), step_s, first=not group.timed)
        group.timed = True
        if self._grouping.step_times.known.keys() != known:
            self._plan_soon()

    def _stop_timing(self, group: SimulatedGroup) -> None:
        if group.chunk_ends is not None:
            group.chunk_ends.cancel()
            group.chunk_ends = None

    def _work_left(self) -> WorkLeft:
        """Return the work left in the phase: the steps of each batch that waits or is under way."""
        steps, flights = self._work.steps, dict[str, Flight]()
        for group in self._all_groups:
            if group.flight is not None:
                flights[group.name] = group.flight
        leased = {flight.lease.requests[0] for flight in flights.values()}
        commits = [self._scheduler.committed(number) for number in self._asked - leased]
        waiting = sorted(steps - commit.step for commit in commits if commit is not None)
        under_way: dict[str, UnderWay] = {}
        for name, flight in flights.items():
            chunks = (self._loop.now - flight.since) // (flight.chunk * flight.step)
            done = min(flight.lease.steps, flight.lease.step + chunks * flight.chunk)
            under_way[name] = UnderWay(flight.lease.steps - done, max(0, self._begun(flight) - done))
        return WorkLeft((*waiting, *[steps] * (self._last - self._next)), under_way)

    def _end(self) -> None:
        for group in self._all_groups:
            self._stop_timing(group)
        super()._end()
