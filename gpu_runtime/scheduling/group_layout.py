"""Decides which devices share a sequence: the best division into groups, and their numbers; pure.

A layout aims, in this order, for the most denoising steps a second, the fewest idle devices, the most devices
that need not regroup, and the most groups. Groups never cross instances. Rates that differ by less than a
thousandth of the best are equal: they are measured, and noise must not break groups up.

Every change of groups is an epoch. A group keeps the number of the epoch that formed it, which is part of its
members' rendezvous keys and of all their reports. So a member that returns late from an old group meets no
other member, and its answers are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from storage.errors import SchedulingError

_RATE_PARTS = 1000

_ByDegree = tuple[tuple[int, int], ...]
"""Ascending pairs of a degree and its rate, or its number of groups, as a cache key."""


@dataclass(frozen=True)
class Group:
    """Devices of one instance that share a sequence; the first one leads.

    Attributes:
        members: device names; their number is the Ulysses degree.
    """

    instance: str
    members: tuple[str, ...]

    def intact(self, devices: Mapping[str, str]) -> bool:
        """Return True if all members are among the live devices, given with their instances."""
        return all(devices.get(member) == self.instance for member in self.members)


Layout: TypeAlias = tuple[Group, ...]
"""Groups by instance, the largest first; a device that no group can use is in none."""

_Worth = tuple[int, int, int, int]
"""The value of a choice: its rate, its devices in groups, those that stay in theirs, and its groups.

More is better; the first difference decides.
"""

_Degrees = tuple[int, ...]
"""Degrees of all groups of an instance, including leftover devices that work alone."""


def plan_layout(
    devices: Mapping[str, str],
    step_s: Mapping[int, float],
    before: Sequence[Group] = (),
    at_once: int | None = None,
    largest: int | None = None,
) -> Layout:
    """Choose the groups.

    Degrees, times and `at_once` are above 0: tables of measured times and profiles take no others.

    Args:
        devices: live device → its instance.
        step_s: degree → measured seconds of a denoising step at this resolution. Only these degrees are
            used; omit degrees that do not divide the sequence or do not fit into memory.
        before: groups so far; unchanged ones need not regroup. Members that are gone are not in
            `devices`.
        at_once: number of concurrent sequences; None for more than devices. With fewer sequences than
            devices, sharing pays off; with many, one device each is usually fastest. Surplus devices work
            alone if degree 1 is measured.
        largest: largest `at_once` used with the same devices and groups, which then share one table; None
            for this one.
    """
    rates = rate_of(step_s)
    instances: dict[str, list[str]] = {}
    for device in sorted(devices):
        instances.setdefault(devices[device], []).append(device)
    names = sorted(instances)
    standing: dict[str, list[Group]] = {name: [] for name in names}
    for group in before:
        if group.intact(devices):
            standing[group.instance].append(group)
    kinds = [
        (len(instances[name]), tuple(sorted(Counter(len(g.members) for g in standing[name]).items())))
        for name in names
    ]
    most = len(devices) if at_once is None else at_once
    bound = min(largest or most, len(devices))
    # A power of two, so the table lasts while the remaining work shrinks.
    best = _best(tuple(sorted(rates.items())), tuple(kinds), 1 << max(0, bound - 1).bit_length())
    _, chosen = max((best[working] for working in best if working <= most), key=lambda entry: entry[0])
    # Survivors of a large group stay together, in order: they hold the same samples. New devices come last.
    former = {
        member: (-len(group.members), group.members, place)
        for group in before
        for place, member in enumerate(group.members)
    }
    groups: list[Group] = []
    for name, degrees in zip(names, chosen, strict=True):
        groups += _assign(name, instances[name], degrees, standing[name], former)
    return tuple(groups)


def large_first(degrees: Iterable[int], most: int) -> dict[int, float]:
    """Return weights that make `plan_layout` form as many groups of degree `most` as possible."""
    return {degree: 1 / degree**2 for degree in degrees if degree <= most}


def rate_of(step_s: Mapping[int, float]) -> dict[int, int]:
    """Return the denoising steps a second by degree, in thousandths of the best: layouts compare them."""
    best = min(step_s.values())
    # At least 1: a slow group is still better than none.
    return {degree: max(1, round(_RATE_PARTS * best / seconds)) for degree, seconds in step_s.items()}


@lru_cache(maxsize=256)
def _choices(
    size: int, rates_by_degree: _ByDegree, standing_of: _ByDegree
) -> Mapping[int, tuple[_Worth, _Degrees]]:
    """Return the best way to divide an instance into each number of working groups. Cached."""
    rates, standing = dict(rates_by_degree), Counter(dict(standing_of))
    best: dict[int, tuple[_Worth, _Degrees]] = {}
    for working in _partitions(size, sorted(rates, reverse=True)):
        alone = size - sum(working) if 1 in rates else 0
        degrees = working + (1,) * alone
        there = Counter(degrees)
        kept = sum(degree * min(count, standing[degree]) for degree, count in there.items())
        rate = sum(rates[degree] for degree in working)
        worth = rate, sum(degrees), kept, len(degrees)
        held = best.get(len(working))
        if held is None or worth > held[0]:
            best[len(working)] = worth, degrees
    return best


def _partitions(size: int, degrees: Sequence[int]) -> Iterator[_Degrees]:
    """Yield descending sequences of degrees with a sum of at most `size`."""
    yield ()
    for place, degree in enumerate(degrees):
        if degree <= size:
            for rest in _partitions(size - degree, degrees[place:]):
                yield (degree, *rest)


@lru_cache(maxsize=64)
def _best(
    rates_by_degree: _ByDegree, instances: tuple[tuple[int, _ByDegree], ...], bound: int
) -> Mapping[int, tuple[_Worth, tuple[_Degrees, ...]]]:
    """Return the best degrees of each instance's groups, by the number of working groups of all. Cached.

    Args:
        rates_by_degree: rate of each degree.
        instances: number of devices of each, and its standing groups.
        bound: largest relevant number of working groups in all.
    """
    best: dict[int, tuple[_Worth, tuple[_Degrees, ...]]] = {0: ((0, 0, 0, 0), ())}
    for size, standing in instances:
        options = _choices(size, rates_by_degree, standing)
        following: dict[int, tuple[_Worth, tuple[_Degrees, ...]]] = {}
        for working, ((rate, busy, kept, groups), path) in best.items():
            for more, (worth, degrees) in options.items():
                if working + more > bound:
                    continue
                value = rate + worth[0], busy + worth[1], kept + worth[2], groups + worth[3]
                held = following.get(working + more)
                if held is None or value > held[0]:
                    following[working + more] = value, (*path, degrees)
        best = following
    return best


def _assign(
    instance: str,
    devices: Sequence[str],
    degrees: Sequence[int],
    standing: Sequence[Group],
    former: Mapping[str, tuple[int, tuple[str, ...], int]],
) -> list[Group]:
    """Assign devices to an instance's groups: existing groups first, then devices that worked together.

    Args:
        former: sort key of each formerly grouped device: the group's size, its members, the device's place.
    """
    wanted = Counter(degrees)
    groups = []
    for group in sorted(standing, key=lambda group: group.members):
        if wanted[len(group.members)]:
            wanted[len(group.members)] -= 1
            groups.append(group)
    taken = {member for group in groups for member in group.members}
    free = [device for device in devices if device not in taken]
    free.sort(key=lambda name: (*former.get(name, (1, (), 0)), name))
    for degree in sorted(wanted.elements(), reverse=True):
        groups.append(Group(instance, tuple(free[:degree])))
        free = free[degree:]
    return sorted(groups, key=lambda group: (-len(group.members), group.members))


@dataclass(frozen=True)
class WorkerGroup:
    """A group as described to its members.

    Attributes:
        epoch: epoch that formed it.
        place: index among that epoch's groups.
        members: device names, the leader first; a member's index is its rank.
    """

    epoch: int
    place: int
    members: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """The prefix of its keys in the driver's store."""
        return f"epoch-{self.epoch}/group-{self.place}/"

    @property
    def leader(self) -> str:
        """The member that reports for all."""
        return self.members[0]

    def rank(self, member: str) -> int:
        """Return a member's rank.

        Raises:
            SchedulingError: if it is not in the group.
        """
        if member not in self.members:
            raise SchedulingError(f"{member!r} is not in group {self.prefix} of {', '.join(self.members)}")
        return self.members.index(member)


@dataclass(frozen=True)
class Change:
    """The changes of an epoch.

    Attributes:
        idle: members of dissolved groups that are now in no group.
    """

    dissolved: tuple[WorkerGroup, ...]
    formed: tuple[WorkerGroup, ...]
    idle: tuple[str, ...]


class GroupRegistry:
    """The current groups, by number."""

    def __init__(self) -> None:
        self.epoch = 0
        """Number of the last change; 0 before the first."""
        self.groups: tuple[WorkerGroup, ...] = ()
        """Current groups."""
        self.group_of: Mapping[str, WorkerGroup] = {}
        """The current group of each member; a device in none is missing."""

    def follow(self, layout: Layout, broken: Sequence[WorkerGroup] = ()) -> Change | None:
        """Change to another layout; groups already in it stay and keep their numbers.

        Groups in `broken` re-form even if their members stay. Returns None, without a new epoch, if nothing
        changes. Raises SchedulingError if a member is in two groups.
        """
        members = [member for group in layout for member in group.members]
        if len(members) != len(set(members)):
            twice = sorted({member for member in members if members.count(member) > 1})
            raise SchedulingError(f"{', '.join(twice)} would be in two groups at a time")
        wanted = {group.members for group in layout}
        kept = [g for g in self.groups if g.members in wanted and g not in broken]
        held = {group.members for group in kept}
        dissolved = tuple(group for group in self.groups if group.members not in held)
        coming = [group for group in layout if group.members not in held]
        if not dissolved and not coming:
            return None
        self.epoch += 1
        formed = tuple(WorkerGroup(self.epoch, place, group.members) for place, group in enumerate(coming))
        self.groups = (*kept, *formed)
        self.group_of = {member: group for group in self.groups for member in group.members}
        left = {member for group in dissolved for member in group.members} - self.group_of.keys()
        return Change(dissolved, formed, tuple(sorted(left)))
