"""The division of the remaining devices into groups that share a sequence. Pure: no torch, no clock.

The aims, in this order: the most denoising steps a second, the fewest idle devices, the most devices that
need not regroup, the most groups. Groups never cross instances.

Rates that differ by less than a thousandth of the best one count as equal: they come from measured times, and
noise must not tear groups apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from storage.errors import ConfigurationError

_RATE_PARTS = 1000


@dataclass(frozen=True)
class Group:
    """Devices of one instance that share a sequence; the first one leads.

    Attributes:
        instance: instance that they are on.
        members: device names; their number is the Ulysses degree.
    """

    instance: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Groups, and the devices that no group can use.

    Attributes:
        groups: groups by instance, the largest first.
        idle: device names; empty if a device may work alone.
    """

    groups: tuple[Group, ...]
    idle: tuple[str, ...]


class _Worth(NamedTuple):
    """The worth of a choice; more is better, and the first field that differs decides."""

    rate: int = 0
    idle: int = 0  # negative
    kept: int = 0
    groups: int = 0

    def plus(self, other: _Worth) -> _Worth:
        return _Worth(*(own + other_s for own, other_s in zip(self, other, strict=True)))


class _Choice(NamedTuple):
    """One way to divide an instance.

    Attributes:
        worth: worth of the choice.
        working: number of groups that count against `at_once`.
        degrees: degrees of all groups, including devices that work alone because nothing else is left.
    """

    worth: _Worth
    working: int
    degrees: tuple[int, ...]


def plan_layout(
    devices: Mapping[str, str],
    step_s: Mapping[int, float],
    before: Sequence[Group] = (),
    at_once: int | None = None,
) -> Layout:
    """Choose the groups.

    Args:
        devices: live device → its instance.
        step_s: degree → measured seconds of a denoising step at the resolution in question. Only these
            degrees are used; leave out degrees that do not divide the sequence or do not fit into memory.
        before: groups so far; those that stay as they are need not regroup. Members that are gone are not
            in `devices`.
        at_once: number of sequences in progress at a time; None for more than there are devices. With fewer
            sequences than devices, sharing pays; with many, one device each is usually fastest. Surplus
            devices work alone, if degree 1 is measured.

    Raises:
        ConfigurationError: if a degree, a time or `at_once` is not a positive number.
    """
    rates = rate_of(step_s)
    if at_once is not None and at_once < 1:
        raise ConfigurationError(f"at_once is {at_once}; it must be at least 1, or None for no limit")
    instances: dict[str, list[str]] = {}
    for device in sorted(devices):
        instances.setdefault(devices[device], []).append(device)
    names = sorted(instances)
    standing = {
        name: [group for group in before if group.instance == name and _intact(group, devices)]
        for name in names
    }
    choices = [
        _choices(
            len(instances[name]),
            tuple(sorted(rates.items())),
            tuple(sorted(Counter(len(g.members) for g in standing[name]).items())),
        )
        for name in names
    ]
    chosen = _best(choices, len(devices) if at_once is None else at_once)
    groups: list[Group] = []
    for name, choice in zip(names, chosen, strict=True):
        groups += _assign(name, instances[name], choice.degrees, standing[name], before)
    used = {member for group in groups for member in group.members}
    return Layout(tuple(groups), tuple(device for device in sorted(devices) if device not in used))


def large_first(degrees: Iterable[int], most: int) -> dict[int, float]:
    """Return weights with which `plan_layout` forms as many groups of a fixed degree as possible.

    A group weighs more than smaller groups of the same devices, which only the remaining devices form.

    Args:
        degrees: numbers of devices that may share the model's sequences.
        most: fixed degree; larger ones are left out.
    """
    return {degree: 1 / degree**2 for degree in degrees if degree <= most}


def rate_of(step_s: Mapping[int, float]) -> dict[int, int]:
    """Return the denoising steps a second by degree, in thousandths of the best, as the layout compares them.

    Raises:
        ConfigurationError: if a degree or a time is not a positive number.
    """
    if not step_s:
        raise ConfigurationError("no step time is measured for any degree; measure at least one")
    for degree, seconds in step_s.items():
        if degree < 1 or not seconds > 0:
            raise ConfigurationError(
                f"a denoising step at degree {degree} takes {seconds} s; both must be positive"
            )
    best = min(step_s.values())
    # At least 1: a slow group is still better than none.
    return {degree: max(1, round(_RATE_PARTS * best / seconds)) for degree, seconds in step_s.items()}


def _intact(group: Group, devices: Mapping[str, str]) -> bool:
    return all(devices.get(member) == group.instance for member in group.members)


@lru_cache(maxsize=256)
def _choices(
    size: int, rates_by_degree: tuple[tuple[int, int], ...], standing_of: tuple[tuple[int, int], ...]
) -> tuple[_Choice, ...]:
    """Return every way to divide an instance that could be best; cached, as calls repeat.

    Args:
        size: number of devices of the instance.
        rates_by_degree: pairs of degree and rate.
        standing_of: pairs of degree and number of existing groups.
    """
    rates, standing = dict(rates_by_degree), Counter(dict(standing_of))
    found: list[_Choice] = []
    for working in _partitions(size, sorted(rates, reverse=True)):
        alone = size - sum(working) if 1 in rates else 0
        degrees = working + (1,) * alone
        there = Counter(degrees)
        kept = sum(degree * min(count, standing[degree]) for degree, count in there.items())
        rate = sum(rates[degree] for degree in working)
        worth = _Worth(rate, sum(degrees) - size, kept, len(degrees))
        found.append(_Choice(worth, len(working), degrees))
    return tuple(found)


def _partitions(size: int, degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield falling sequences of degrees with a sum of at most `size`."""
    yield ()
    for place, degree in enumerate(degrees):
        if degree <= size:
            for rest in _partitions(size - degree, degrees[place:]):
                yield (degree, *rest)


def _best(choices: Sequence[Sequence[_Choice]], at_once: int) -> list[_Choice]:
    """Return a choice for each instance, together worth the most, with at most `at_once` working groups."""
    # working groups so far → the best choices with exactly that many
    best: dict[int, tuple[_Worth, tuple[_Choice, ...]]] = {0: (_Worth(), ())}
    for options in choices:
        # Of options with equally many working groups only the best one matters.
        by_working: dict[int, _Choice] = {}
        for option in options:
            held = by_working.get(option.working)
            if held is None or option.worth > held.worth:
                by_working[option.working] = option
        following: dict[int, tuple[_Worth, tuple[_Choice, ...]]] = {}
        for working, (worth, path) in best.items():
            for option in by_working.values():
                total = working + option.working
                if total > at_once:
                    continue
                value = worth.plus(option.worth)
                if total not in following or value > following[total][0]:
                    following[total] = (value, (*path, option))
        best = following
    return list(max(best.values(), key=lambda entry: entry[0])[1])


def _assign(
    instance: str,
    devices: Sequence[str],
    degrees: Sequence[int],
    standing: Sequence[Group],
    before: Sequence[Group],
) -> list[Group]:
    """Give names to an instance's groups: existing ones first, then devices that worked together."""
    wanted = Counter(degrees)
    groups = []
    for group in sorted(standing, key=lambda group: group.members):
        if wanted[len(group.members)]:
            wanted[len(group.members)] -= 1
            groups.append(group)
    taken = {member for group in groups for member in group.members}
    free = [device for device in devices if device not in taken]
    former_group = {member: (-len(g.members), g.members) for g in before for member in g.members}
    # Survivors of a large group stay together, in order: they hold the same samples. New devices come last.
    order = {member: place for g in before for place, member in enumerate(g.members)}
    free.sort(key=lambda name: (former_group.get(name, (1, ())), order.get(name, 0), name))
    for degree in sorted(wanted.elements(), reverse=True):
        groups.append(Group(instance, tuple(free[:degree])))
        free = free[degree:]
    return sorted(groups, key=lambda group: (-len(group.members), group.members))
