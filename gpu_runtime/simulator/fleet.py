"""Devices of a simulated run: reserved ones that stay, spot ones that come and go as a trace says. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gpu_runtime.scheduling.paid_time import PaidMeter
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.scheduling.timeline import Timeline
from gpu_runtime.scheduling.work_items import Lease
from gpu_runtime.simulator.virtual_time import Event, EventLoop, ticks
from gpu_runtime.spot.traces.replay import Replay, ReplayStep
from storage.database.records import DeviceState, Market
from storage.errors import ConfigurationError


@dataclass(frozen=True)
class FleetPlan:
    """What is rented.

    Attributes:
        reserved: devices that stay.
        spot: most spot devices at once; the trace says how many there are.
        trainers: reserved devices that train together.
        reserved_usd_per_hour, spot_usd_per_hour: price of a device.

    Raises:
        ConfigurationError: no device trains, or more train than are reserved.
    """

    reserved: int
    spot: int
    trainers: int
    reserved_usd_per_hour: float
    spot_usd_per_hour: float

    def __post_init__(self) -> None:
        if not 1 <= self.trainers <= self.reserved:
            raise ConfigurationError(
                f"{self.trainers} of {self.reserved} reserved devices are to train; give 1 to {self.reserved}"
            )
        if self.spot < 0:
            raise ConfigurationError(f"{self.spot} spot devices; give 0 or more")

    def usd_per_hour(self, market: Market) -> float:
        """Price of a device."""
        return self.reserved_usd_per_hour if market == "reserved" else self.spot_usd_per_hour


@dataclass(slots=True, eq=False)
class Flight:
    """A lease on its device.

    Attributes:
        lease: of one batch.
        since: when it was granted.
        end: when the batch is finished, or handed back at a notice.
    """

    lease: Lease[int]
    since: int
    end: Event


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """A device: a few times, and what it does.

    Attributes:
        name: unlike any other.
        market: how it is rented.
        trains: whether it is one of the trainers.
        loading: when it will have loaded its model; None once it has.
        holds: version of its weights.
        coming: when it will hold the phase's weights.
        noticed: it is under a preemption notice.
        free_at: until then it is busy with a call whose result is not used.
        flight: what it works on.
    """

    name: str
    market: Market
    trains: bool = False
    loading: Event | None = None
    holds: WeightsVersion | None = None
    coming: Event | None = None
    noticed: bool = False
    free_at: int = 0
    flight: Flight | None = None


class PhaseOfDevices(Protocol):
    """What goes on with the devices, and is told of what happens to them."""

    def on_joined(self, device: SimulatedDevice) -> None:
        """A device has loaded its model."""
        ...

    def on_notice(self, device: SimulatedDevice) -> None:
        """A device is under a preemption notice."""
        ...

    def on_lost(self, device: SimulatedDevice) -> None:
        """A device is gone; it is still on the time line."""
        ...


@dataclass
class FleetCounts:
    """What happened to devices.

    Attributes:
        joined: spot devices that loaded their model.
        notices: notices given.
        losses: spot devices that went.
        changes: all of these, and devices that came.
    """

    joined: int = 0
    notices: int = 0
    losses: int = 0
    changes: int = 0


class SimulatedFleet:
    """Devices, and their states on the time line.

    Args:
        loop: the clock.
        plan: what is rented.
        start: ticks from an instance's coming to a loaded worker.
        replay: when spot instances come, are warned and go; None for none.
    """

    def __init__(self, loop: EventLoop, plan: FleetPlan, start: int, replay: Replay | None = None) -> None:
        self.timeline = Timeline()
        self.meter = PaidMeter()
        self.counts = FleetCounts()
        self.phase: PhaseOfDevices | None = None
        self._loop = loop
        self._plan = plan
        self._start = start
        self._replay = replay
        self._devices: dict[str, SimulatedDevice] = {}
        for number in range(plan.reserved):
            self._add(f"reserved-{number}", "reserved", number < plan.trainers)
        self._await_trace()

    def __iter__(self) -> Iterator[SimulatedDevice]:
        """The devices that are there, in the order in which they came."""
        return iter(self._devices.values())

    @property
    def reserved_loaded(self) -> bool:
        """Whether the devices have loaded that a run needs to begin."""
        return all(device.loading is None for device in self if device.market == "reserved")

    @property
    def trainers(self) -> list[SimulatedDevice]:
        """The devices that train."""
        return [device for device in self if device.trains]

    def enter(self, device: SimulatedDevice, state: DeviceState) -> None:
        """Book what a device does from now on."""
        self.timeline.enter(device.name, state, self._loop.now)

    def _add(self, name: str, market: Market, trains: bool = False) -> None:
        now = self._loop.now
        device = self._devices[name] = SimulatedDevice(name, market, trains)
        self.timeline.add(name, market, self._plan.usd_per_hour(market), now)
        self.meter.start(name, market, now)
        device.loading = self._loop.at(now + self._start, partial(self._join, device))
        self.counts.changes += 1

    def _join(self, device: SimulatedDevice) -> None:
        device.loading = None
        self.counts.changes += 1
        self.counts.joined += device.market == "spot"
        self.enter(device, "idle")
        if self.phase is not None:
            self.phase.on_joined(device)

    def _await_trace(self) -> None:
        """Put the trace's next moment on the clock."""
        next_s = None if self._replay is None else self._replay.next_s
        if next_s is not None:
            self._loop.at(max(self._loop.now, ticks(next_s)), partial(self._follow_trace, next_s))

    def _follow_trace(self, at_s: float) -> None:
        assert self._replay is not None
        for step in self._replay.due(at_s):
            self._take(step)
        self._await_trace()

    def _take(self, step: ReplayStep) -> None:
        """Do what the trace says of an instance; one that was not rented is ignored."""
        device = self._devices.get(step.instance)
        if step.kind == "add":
            # An instance that is there, even under notice, fills a place.
            if len(self._devices) < self._plan.reserved + self._plan.spot:
                self._add(step.instance, "spot")
        elif device is not None and step.kind == "notice":
            device.noticed = True
            self.counts.notices += 1
            self.counts.changes += 1
            if self.phase is not None:
                self.phase.on_notice(device)
        elif device is not None:
            self._on_device_lost(device)

    def _on_device_lost(self, device: SimulatedDevice) -> None:
        self.counts.losses += 1
        self.counts.changes += 1
        for event in (device.loading, device.coming):
            if event is not None:
                event.cancel()
        # First, so that the phase's other devices see the fleet without it.
        del self._devices[device.name]
        if self.phase is not None:
            self.phase.on_lost(device)
        self.timeline.remove(device.name, self._loop.now)
        self.meter.stop(device.name, self._loop.now)
