"""Devices of a simulated run that share samples, and pull as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_runtime.scheduling.history import MEMBERS_JOINED_BY
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from gpu_runtime.simulator.devices import Flight, SimulatedDevice
from gpu_runtime.simulator.virtual_time import Event


class SimulatedGroup:
    """A group of one epoch, with one or several devices.

    Args:
        place: its epoch and the names of its members.
        members: the devices, the leader first.
    """

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
