"""The devices of a simulated run, alone or in groups that share samples, and their leases. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.scheduling.history import MEMBERS_JOINED_BY
from gpu_runtime.scheduling.requests import Lease, WeightsVersion
from gpu_runtime.simulator.virtual_time import Event
from storage.record.records import Market


class BatchTimes(NamedTuple):
    """The speed of a batch.

    Attributes:
        step: ticks of a denoising step.
        decode: ticks of decoding.
        chunk: denoising steps between commits.
    """

    step: int
    decode: int
    chunk: int


@dataclass(slots=True, eq=False)
class Flight:
    """A lease under way on a device.

    Attributes:
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
        came: tick at which its process began.
        loading: event at which it has loaded its model; None once it has.
        joined: True once it is part of the fleet; its loading is then on the bill.
        known_gone: tick at which the run can know that its instance is lost; None while the instance exists.
        holds: version of its weights.
        coming: event at which it will hold the phase's weights.
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

    def state(self, version: WeightsVersion, now: int) -> Hashable:
        """Return all of it that a phase with a version of the weights depends on; times count from now."""
        return (
            max(0, self.free_at - now), self.holds == version, self.noticed, self.joined,
            # The others wait until the run knows of the loss.
            None if self.known_gone is None else self.known_gone - now,
            self.trains, self.market,
        )  # fmt: skip


class SimulatedGroup:
    """A group of one epoch, with one or several devices, the leader first, which pull as one."""

    def __init__(self, place: WorkerGroup, members: Sequence[SimulatedDevice]) -> None:
        self.place = place
        self.members = tuple(members)
        self.name = MEMBERS_JOINED_BY.join(place.members)
        self.forming: Event | None = None
        """Event at which it will be formed; None while it waits for a member, and once it is formed."""
        self.formed = False
        self.over = False
        """True if it gets no further lease: other groups are planned, or it is broken."""
        self.timed = False
        """True if one of its chunks has been timed."""
        self.chunk_ends: Event | None = None
        """Event at which a chunk is timed, where measured times choose degrees."""
        self._flight: Flight | None = None

    @property
    def flight(self) -> Flight | None:
        """The lease that its members work on."""
        return self._flight

    @flight.setter
    def flight(self, flight: Flight | None) -> None:
        self._flight = flight
        for device in self.members:
            device.flight = flight

    @property
    def noticed(self) -> bool:
        """True if a member is under a preemption notice."""
        return any(device.noticed for device in self.members)

    @property
    def serves(self) -> bool:
        """True if it gets further leases."""
        return self.formed and not self.over

    @property
    def trains(self) -> bool:
        """True if a trainer is in it."""
        return any(device.trains for device in self.members)


Holder = SimulatedDevice | SimulatedGroup
"""One that pulls batches."""
