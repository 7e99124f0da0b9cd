"""Devices of a simulated run that share samples, and pull as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_runtime.scheduling.history import MEMBERS_JOINED_BY
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from gpu_runtime.simulator.devices import Flight, SimulatedDevice
from gpu_runtime.simulator.virtual_time import Event


class SimulatedGroup:
    """A group of one epoch, of one device or of several.

    Args:
        place: its number and its members.
        members: the devices, the leader first.
    """

    def __init__(self, place: WorkerGroup, members: Sequence[SimulatedDevice]) -> None:
        self.place = place
        self.members = tuple(members)
        self.name = MEMBERS_JOINED_BY.join(place.members)
        self.forming: Event | None = None
        """When it will be formed; none while it waits for a member, nor once it is formed."""
        self.formed = False
        self.over = False
        """It gets no further lease: other groups are planned, or it is broken."""
        self.timed = False
        """A chunk of it has been timed."""
        self.chunk_ends: Event | None = None
        """When a chunk is timed, where measured times choose degrees."""
        self._flight: Flight | None = None

    @property
    def flight(self) -> Flight | None:
        """What its members work on."""
        return self._flight

    @flight.setter
    def flight(self, flight: Flight | None) -> None:
        self._flight = flight
        for device in self.members:
            device.flight = flight

    @property
    def noticed(self) -> bool:
        """Whether a member is under a preemption notice."""
        return any(device.noticed for device in self.members)

    @property
    def serves(self) -> bool:
        """Whether it gets further leases."""
        return self.formed and not self.over

    @property
    def trains(self) -> bool:
        """Whether a trainer is in it."""
        return any(device.trains for device in self.members)
