"""Devices of a simulated run: reserved ones stay, spot ones come and go by a trace. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import Literal

from gpu_runtime.scheduling.device_time import PaidMeter, Timeline
from gpu_runtime.simulator.devices import PhaseUnderWay, SimulatedDevice
from gpu_runtime.simulator.lent_devices import ASSUMED_LOAD, LentDevices, ServingLoad
from gpu_runtime.simulator.profile import WorkloadTimes
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop, ticks
from gpu_runtime.spot.prices.price_history import PriceHistory
from gpu_runtime.spot.traces.replay import Replay
from storage.errors import ConfigurationError
from storage.record.records import DeviceEvent, DeviceEventKind, DeviceState, Market, StateInterval

FleetDecision = Literal["cheapest", "astraflow"]


@dataclass(frozen=True)
class FleetPlan:
    """The devices to rent and their prices.

    Attributes:
        spot: most spot devices at once; the trace gives the available ones.
        trainers: number of reserved devices that train together.
        reserved_usd_per_hour, spot_usd_per_hour: price of a device; the average if it changes.
        decided: rule that decides before each iteration how many spot devices to rent; None to rent all that
            are available. `cheapest` is `decide_capacity`, and `astraflow` is `scale_generators`.
        instance_devices: devices per instance, which may share samples; reserved and spot devices are on
            separate instances. 0 if all are on one, as in a local cluster.
        prices: prices from the run's beginning on, for markets where they change.
        serving: load of the serving fleet, if it lends the spot devices.

    Raises:
        ConfigurationError: no device trains, more train than are reserved, or `spot` is negative.
    """

    reserved: int
    spot: int
    trainers: int
    reserved_usd_per_hour: float
    spot_usd_per_hour: float
    decided: FleetDecision | None = None
    instance_devices: int = 0
    prices: Mapping[Market, PriceHistory] = field(default_factory=dict)
    serving: ServingLoad = ASSUMED_LOAD

    def __post_init__(self) -> None:
        if not 1 <= self.trainers <= self.reserved:
            raise ConfigurationError(
                f"{self.trainers} of {self.reserved} reserved devices are to train; give 1 to {self.reserved}"
            )
        if self.spot < 0:
            raise ConfigurationError(f"{self.spot} spot devices; give 0 or more")

    def usd_per_hour(self, market: Market) -> float:
        """Return the price of a device; the average if it changes."""
        return self.reserved_usd_per_hour if market == "reserved" else self.spot_usd_per_hour

    def price_at(self, market: Market, at_s: float) -> float:
        """Return the price of a device at a moment of the run."""
        prices = self.prices.get(market)
        return self.usd_per_hour(market) if prices is None else prices.price_at(at_s)

    def priced(self, interval: StateInterval) -> StateInterval:
        """Return an interval in ticks with the average price of the device during it."""
        prices = self.prices.get(interval.market)
        if prices is None:
            return interval
        usd = prices.mean(interval.started_at / TICKS_PER_S, interval.ended_at / TICKS_PER_S)
        return replace(interval, usd_per_hour=usd)

    def beginning(self, at_s: float) -> FleetPlan:
        """Return the plan for a run that begins at a moment of the price history."""
        return replace(self, prices={market: known.beginning(at_s) for market, known in self.prices.items()})


class SimulatedFleet:
    """Devices and their states on the timeline, booked as a live run's fleet books them.

    A device joins once it has loaded and a phase takes it in, and is paid for from the start of its process.
    A lost device keeps its state, and is paid for, until the run knows of the loss: a busy one `times.loss`
    ticks after its instance was lost, an idle one at the next phase.

    Args:
        times: times to start, and to notice a loss.
        replay: arrivals, notices and losses of spot instances; None for no spot instances.
    """

    def __init__(
        self, loop: EventLoop, plan: FleetPlan, times: WorkloadTimes, replay: Replay | LentDevices | None
    ) -> None:
        self.timeline = Timeline()
        self.meter = PaidMeter()
        self.joined, self.notices, self.losses = 0, 0, 0
        """Spot devices that loaded their model, notices given, and spot devices lost."""
        self.changes = 0
        """All of these, plus arrivals, devices given back, and losses becoming known."""
        self.events: list[DeviceEvent] = []
        """Events of spot devices, in ticks."""
        self.phase: PhaseUnderWay | None = None
        self._loop = loop
        self._plan = plan
        self._times = times
        self.disturbed_at: int | None = None
        """Tick of the trace's next event; None after the last one."""
        self._replay = replay
        self.devices: dict[str, SimulatedDevice] = {}
        """Present devices by name, in order of arrival."""
        self._on: dict[str, SimulatedDevice] = {}  # by instance
        # Available instances without a slot; ordered, with constant-time access at both ends.
        self._unused: OrderedDict[str, None] = OrderedDict()
        self._begun = 0
        self._places = plan.spot
        self._free_places = list(range(plan.spot))  # a heap: the lowest are filled first
        self._wanted = plan.spot
        # Counted as devices change, so that a fleet of ten thousand is not searched at each event.
        self.staying = 0
        """Spot devices without a notice, including those still loading."""
        self.loading, self.reserved_loading = 0, 0
        """Devices loading their model, and the reserved ones among them, which a run waits for."""
        for number in range(plan.reserved):
            self._add(f"reserved-{number}", "reserved", number, number < plan.trainers)
        self._follow_trace(None)

    def __iter__(self) -> Iterator[SimulatedDevice]:
        """Iterate over the present devices in order of arrival."""
        return iter(self.devices.values())

    @property
    def trainers(self) -> list[SimulatedDevice]:
        """The devices that train."""
        return [device for device in self if device.trains]

    def enter(self, device: SimulatedDevice, state: DeviceState, at: int | None = None) -> None:
        """Book a device's state from now on, or from a later moment."""
        self.timeline.enter(device.name, state, self._loop.now if at is None else at)

    def take_in(self) -> None:
        """Let loaded devices join, and remove those known to be lost, at the beginning of a phase."""
        for device in list(self):
            if device.loading is None and not device.joined:
                self._register(device)
            if device.known_gone is not None and device.known_gone <= self._loop.now:
                self._remove(device)

    def on_training(self) -> None:
        """Tell a serving fleet that the run begins to train."""
        if isinstance(self._replay, LentDevices):
            self._replay.on_training()

    def want(self, spot: int) -> None:
        """Rent this many spot devices from now on; excess ones are given back, newest first.

        Call it between phases. An instance that was given back can be rented again while it is available.
        """
        self._wanted = spot
        staying = [name for name, device in self._on.items() if not device.noticed]
        for instance in reversed(staying[spot:]):
            device = self._on.pop(instance)
            if device.loading is not None:
                device.loading.cancel()
            if not device.joined:
                self._start_paying(device)
            self.changes += 1
            self._note("left", device)
            self._unused[instance] = None
            self._remove(device)
        self._fill()

    def _add(self, name: str, market: Market, place: int, trains: bool = False) -> SimulatedDevice:
        now = self._loop.now
        device = self.devices[name] = SimulatedDevice(name, market, now, trains)
        each, device.place = self._plan.instance_devices, place
        device.instance = f"{market}-{place // each}" if each else ""
        device.loading = self._loop.at(now + self._times.of(market).start, partial(self._on_loaded, device))
        self.loading += 1
        self.reserved_loading += market == "reserved"
        self.staying += market == "spot"
        self.changes += 1
        return device

    def _on_loaded(self, device: SimulatedDevice) -> None:
        device.loading = None
        self.loading -= 1
        self.reserved_loading -= device.market == "reserved"
        self.changes += 1
        self.joined += device.market == "spot"
        if self.phase is not None:
            self._register(device)
            self.phase.take_in(device)

    def _register(self, device: SimulatedDevice) -> None:
        self._start_paying(device)
        self._note("joined", device)
        self.enter(device, "idle")
        device.joined = True

    def _start_paying(self, device: SimulatedDevice) -> None:
        self.timeline.add(device.name, device.market, self._plan.usd_per_hour(device.market), device.came)
        self.meter.start(device.name, device.market, device.came)

    def _follow_trace(self, at_s: float | None) -> None:
        """Apply the trace's steps due by `at_s` (None: none yet), and schedule its next event."""
        if self._replay is None:
            return
        for step in () if at_s is None else self._replay.due(at_s):
            device = self._on.get(step.instance)
            if step.kind == "add":
                self._unused[step.instance] = None
                self._fill()
            elif device is None:
                if step.kind == "remove":
                    self._unused.pop(step.instance, None)
            elif step.kind == "notice":
                self.staying -= not device.noticed
                device.noticed = True
                self.notices += 1
                self._note("notice", device)
                self.changes += 1
                if self.phase is not None:
                    self.phase.warn(device)
                self._fill()
            else:
                del self._on[step.instance]
                self._on_gone(device)
        next_s, self.disturbed_at = self._replay.next_s, None
        if next_s is not None:
            self.disturbed_at = at = max(self._loop.now, ticks(next_s))
            self._loop.at(at, partial(self._follow_trace, next_s))

    def _fill(self) -> None:
        """Start workers on available instances until as many devices stay as are wanted."""
        while self._unused and self.staying < self._wanted:
            instance, _ = self._unused.popitem(last=False)
            if not self._free_places:  # a device under notice still has its slot
                self._free_places.append(self._places)
                self._places += 1
            place = heappop(self._free_places)
            self._on[instance] = self._add(f"spot-{self._begun}", "spot", place)
            self._begun += 1

    def _on_gone(self, device: SimulatedDevice) -> None:
        """Halt the device of a lost instance; the run learns of it when a call to its worker fails."""
        self.losses += 1
        self._note("lost", device)
        self.changes += 1
        device.known_gone = self._loop.now + self._times.loss
        if device.loading is not None:
            device.loading.cancel()
        if self.phase is not None and device.joined:
            self.phase.halt(device)
        self._loop.at(device.known_gone, partial(self.learn, device))

    def learn(self, device: SimulatedDevice) -> None:
        """Tell the run that a device is lost, if it waits for the device's answer."""
        self.changes += 1
        if device.loading is not None:
            # It died while loading, which is billed all the same.
            self._start_paying(device)
            self._remove(device)
        elif self.phase is not None and self.phase.awaits(device):
            # Removed first, so that the phase's other devices see the fleet without it.
            if self.devices.get(device.name) is device:
                self._remove(device)
            self.phase.fail_calls(device)

    def _note(self, kind: DeviceEventKind, device: SimulatedDevice) -> None:
        if device.market == "spot":
            self.events.append(DeviceEvent(device.name, device.market, kind, self._loop.now))

    def _remove(self, device: SimulatedDevice) -> None:
        if self.devices.pop(device.name, None) is not None:
            self.loading -= device.loading is not None
            if device.market == "spot":
                heappush(self._free_places, device.place)
                self.staying -= not device.noticed
        self.timeline.remove(device.name, self._loop.now)
        self.meter.stop(device.name, self._loop.now)
        self._fill()
