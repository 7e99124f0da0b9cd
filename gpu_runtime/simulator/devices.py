"""A device of a simulated run, what it works on, and the phase that hears of its changes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.scheduling.requests import Lease, WeightsVersion
from gpu_runtime.simulator.virtual_time import Event
from storage.record.records import Market


@dataclass(slots=True, eq=False)
class Flight:
    """A lease on its device.

    Attributes:
        lease: of one batch.
        since: when it was granted.
        end: when the batch is finished, or handed back at a notice or for another group.
        step: ticks of a denoising step.
        chunk: denoising steps between commits.
        halted: when its instance went; None as long as it works.
        until: denoising step at which it is handed back; None where it is delivered.
    """

    lease: Lease[int]
    since: int
    end: Event
    step: int
    chunk: int
    halted: int | None = None
    until: int | None = None


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """A device: a few times, and what it does.

    Attributes:
        name: unlike any other.
        market: how it is rented.
        came: when its process began.
        trains: whether it is one of the trainers.
        loading: when it will have loaded its model; None once it has.
        joined: it is one of the fleet's devices: from then on, its loading is on the bill.
        known_gone: when the run can know that its instance has gone; None as long as that is there.
        holds: version of its weights.
        coming: when it will hold the phase's weights.
        noticed: it is under a preemption notice.
        free_at: until then it is busy with a call whose result is not used.
        flight: what it works on, alone or with others.
        place: its number among the places of its market.
        instance: where it is.
    """

    name: str
    market: Market
    came: int = 0
    trains: bool = False
    loading: Event | None = None
    joined: bool = False
    known_gone: int | None = None
    holds: WeightsVersion | None = None
    coming: Event | None = None
    noticed: bool = False
    free_at: int = 0
    flight: Flight | None = None
    place: int = 0
    instance: str = ""

    @property
    def serves(self) -> bool:
        """Whether it has joined and stays, as far as the run can know."""
        return self.joined and self.known_gone is None and not self.noticed

    @property
    def members(self) -> tuple[SimulatedDevice, ...]:
        """Itself: it works alone."""
        return (self,)


class Holder(Protocol):
    """What pulls: a device, or devices that share samples."""

    @property
    def flight(self) -> Flight | None:
        """What it works on."""
        ...

    @flight.setter
    def flight(self, flight: Flight | None) -> None: ...

    @property
    def name(self) -> str:
        """As leases have it."""
        ...

    @property
    def noticed(self) -> bool:
        """Whether it is under a preemption notice."""
        ...

    @property
    def serves(self) -> bool:
        """Whether it stays, as far as the run can know."""
        ...

    @property
    def trains(self) -> bool:
        """Whether a trainer is in it."""
        ...

    @property
    def members(self) -> tuple[SimulatedDevice, ...]:
        """The devices that pull as one."""
        ...


class PhaseOfDevices(Protocol):
    """A phase that the devices are in; its methods are called when one joins, leaves or is lost."""

    def on_joined(self, device: SimulatedDevice) -> None:
        """A device has loaded its model."""
        ...

    def on_notice(self, device: SimulatedDevice) -> None:
        """A device is under a preemption notice."""
        ...

    def on_gone(self, device: SimulatedDevice) -> None:
        """A device does nothing any more; the run does not know it yet."""
        ...

    def on_lost(self, device: SimulatedDevice) -> None:
        """The run knows that a device that had something to do is lost; it is still on the time line."""
        ...
