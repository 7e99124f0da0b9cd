"""What every device may do now. Pure: no clock, no Ray, no torch.

A plan says what the reserved and the spot devices do in a phase, and with which policy version. A device
takes its part once it holds that version, so one that joins in mid-phase falls in by itself. Whatever is
reported, the answer is the devices whose role changed, and nothing else needs to be told.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from gpu_runtime.scheduling.requests import RequestKind
from storage.errors import SchedulingError
from storage.records import Market


class Role(StrEnum):
    """What a device may do; the last three do no work."""

    TRAIN = "train"
    ROLLOUT = "rollout"
    EXPLORE = "explore"
    IDLE = "idle"  # there is nothing for it in this phase
    LOADING = "loading"  # it lacks the weights of this phase
    DRAINING = "draining"  # its end was announced


# What a device of a role may pull. A device that rolls out may explore when a window is open and
# nothing else waits; one that explores leaves the rollout to the others.
KINDS: dict[Role, frozenset[RequestKind]] = {role: frozenset() for role in Role} | {
    Role.ROLLOUT: frozenset(RequestKind),
    Role.EXPLORE: frozenset({RequestKind.EXPLORE}),
}


@dataclass(frozen=True)
class Device:
    """A device of the fleet.

    Attributes:
        name: unlike any other.
        market: how it is rented.
        instance: the machine that it is in.
    """

    name: str
    market: Market
    instance: str


@dataclass(frozen=True)
class Plan:
    """What a phase asks of the devices.

    Attributes:
        reserved: role of the reserved devices.
        spot: role of the spot devices.
        version: policy version that both need.
        trainers: the only devices that train, where not all reserved ones do; the others of them
            do what spot devices do.
        without_spot: role of the reserved devices when no spot device is left.
    """

    reserved: Role
    spot: Role
    version: int
    trainers: frozenset[str] | None = None
    without_spot: Role | None = None

    @classmethod
    def rollout(cls, version: int, reserved_help: bool = True) -> Plan:
        """Spot devices roll out; the reserved ones too, or only when all spot is gone."""
        return cls(
            Role.ROLLOUT if reserved_help else Role.IDLE, Role.ROLLOUT, version, without_spot=Role.ROLLOUT
        )

    @classmethod
    def train(cls, version: int, trainers: Collection[str] | None = None) -> Plan:
        """The reserved devices train, or some of them; the others explore with what they hold.

        Args:
            version: the one that training starts from and exploration uses.
            trainers: names; all reserved devices by default.
        """
        return cls(Role.TRAIN, Role.EXPLORE, version, None if trainers is None else frozenset(trainers))


Changes = dict[str, Role]


class Roles:
    """One table of the devices; every report returns the roles that changed by it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._devices: dict[str, Device] = {}
        self._held: dict[str, int | None] = {}
        self._draining: set[str] = set()
        self._roles: dict[str, Role] = {}
        self._present_spot = 0  # spot devices whose end is not announced

    def role(self, name: str) -> Role:
        """What a device may do now.

        Raises:
            SchedulingError: if it is unknown.
        """
        self._known(name)
        return self._roles[name]

    def having(self, role: Role) -> tuple[Device, ...]:
        """Devices of a role, in the order in which they joined."""
        return tuple(device for name, device in self._devices.items() if self._roles[name] is role)

    @property
    def plan(self) -> Plan:
        """The plan that the roles follow."""
        return self._plan

    def follow(self, plan: Plan) -> Changes:
        """Another phase begins."""
        self._plan = plan
        return self._changes(self._devices)

    def join(self, device: Device, holds: int | None = None) -> Changes:
        """A device is there, with a policy version or none yet.

        Raises:
            SchedulingError: if one of its name is there.
        """
        if device.name in self._devices:
            raise SchedulingError(f"device {device.name!r} is there already; let it leave before it joins")
        self._devices[device.name] = device
        self._held[device.name] = holds
        return self._after_spot(device, 1)

    def holds(self, name: str, version: int | None) -> Changes:
        """A device computes with another policy version now; None while it has none that is whole.

        Raises:
            SchedulingError: if the device is unknown.
        """
        self._known(name)
        self._held[name] = version
        return self._changes([name])

    def drain(self, name: str) -> Changes:
        """A device's end was announced: it gets nothing more to do; announcing it twice is once.

        Raises:
            SchedulingError: if the device is unknown.
        """
        device = self._known(name)
        if name in self._draining:
            return {}
        self._draining.add(name)
        return self._after_spot(device, -1)

    def leave(self, name: str) -> Changes:
        """A device is gone; unknown ones are ignored, since losses are reported more than once."""
        device = self._devices.pop(name, None)
        if device is None:
            return {}
        announced = name in self._draining
        self._draining.discard(name)
        del self._held[name], self._roles[name]
        return {} if announced else self._after_spot(device, -1)

    def _after_spot(self, device: Device, change: int) -> Changes:
        if device.market == "spot":
            self._present_spot += change
            # The first and the last spot device decide what the reserved ones do.
            if self._present_spot == 0 or (self._present_spot, change) == (1, 1):
                return self._changes(self._devices)
        return self._changes([device.name])

    def _changes(self, names: Collection[str]) -> Changes:
        changed: Changes = {}
        for name in names:
            if name in self._devices:
                role = self._due(self._devices[name])
                if self._roles.get(name) is not role:
                    changed[name] = self._roles[name] = role
        return changed

    def _due(self, device: Device) -> Role:
        plan = self._plan
        if device.name in self._draining:
            return Role.DRAINING
        spare = plan.trainers is not None and device.name not in plan.trainers
        if device.market == "spot" or spare:
            role = plan.spot
        elif plan.without_spot is not None and not self._present_spot:
            role = plan.without_spot
        else:
            role = plan.reserved
        if role is not Role.IDLE and self._held[device.name] != plan.version:
            return Role.LOADING
        return role

    def _known(self, name: str) -> Device:
        if name not in self._devices:
            raise SchedulingError(f"device {name!r} is not in the table; let it join first")
        return self._devices[name]
