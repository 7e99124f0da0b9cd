"""A device of a simulated run, its current lease, and the interface of the phase it is in. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.scheduling.requests import Lease, WeightsVersion
from gpu_runtime.simulator.virtual_time import Event
from storage.record.records import Market


@dataclass(slots=True, eq=False)
class Flight:
    """A lease under way on a device.

    Attributes:
        lease: lease of one batch.
        since: tick at which it was granted.
        end: event at which the batch is finished, or handed back at a notice or for another group.
        step: ticks of a denoising step.
        chunk: denoising steps between commits.
        halted: tick at which its instance was lost; None while it works.
        until: denoising step at which it is handed back; None if it will be delivered.
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
    """The state of a simulated device.

    Attributes:
        name: unique name.
        market: market that it is rented on.
        came: tick at which its process began.
        trains: True if it is a trainer.
        loading: event at which it has loaded its model; None once it has.
        joined: True once it is part of the fleet; its loading is then on the bill.
        known_gone: tick at which the run can know that its instance is lost; None while the instance exists.
        holds: version of its weights.
        coming: event at which it will hold the phase's weights.
        noticed: True if it is under a preemption notice.
        free_at: tick until which it is busy with a call whose result is not used.
        flight: lease that it works on, alone or with others.
        place: its slot among those of its market.
        instance: name of its instance.
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
        """True if it has joined and stays, as far as the run can know."""
        return self.joined and self.known_gone is None and not self.noticed

    @property
    def members(self) -> tuple[SimulatedDevice, ...]:
        """The device alone, since it works alone."""
        return (self,)


class Holder(Protocol):
    """A device, or a group of devices that share samples, that pulls batches."""

    @property
    def flight(self) -> Flight | None:
        """The lease that it works on."""
        ...

    @flight.setter
    def flight(self, flight: Flight | None) -> None: ...

    @property
    def name(self) -> str:
        """Its name in leases."""
        ...

    @property
    def noticed(self) -> bool:
        """True if it is under a preemption notice."""
        ...

    @property
    def serves(self) -> bool:
        """True if it stays, as far as the run can know."""
        ...

    @property
    def trains(self) -> bool:
        """True if a trainer is in it."""
        ...

    @property
    def members(self) -> tuple[SimulatedDevice, ...]:
        """The devices in it."""
        ...


class PhaseOfDevices(Protocol):
    """The phase that devices are in; its methods are called when a device joins, leaves or is lost."""

    def on_joined(self, device: SimulatedDevice) -> None:
        """Take note that a device has loaded its model."""
        ...

    def on_notice(self, device: SimulatedDevice) -> None:
        """Take note that a device is under a preemption notice."""
        ...

    def on_gone(self, device: SimulatedDevice) -> None:
        """Take note that a device has stopped working, which the run does not know yet."""
        ...

    def on_lost(self, device: SimulatedDevice) -> None:
        """Take note that the run knows of the loss of a busy device, which is still on the timeline."""
        ...
