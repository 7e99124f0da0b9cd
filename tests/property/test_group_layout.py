"""The layout against brute force over every way to group a few devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.scheduling.group_layout import Group, Layout, plan_layout, rate_of
from tests.examples import examples

Worth = tuple[int, int, int, int]


def groupings(names: Sequence[str], degrees: frozenset[int]) -> Iterator[tuple[frozenset[str], ...]]:
    """Every set of disjoint groups of these sizes; devices in none are left out."""
    if not names:
        yield ()
        return
    first, rest = names[0], names[1:]
    yield from groupings(rest, degrees)
    for bits in range(2 ** len(rest)):
        company = [name for place, name in enumerate(rest) if bits >> place & 1]
        if len(company) + 1 in degrees:
            left = [name for name in rest if name not in company]
            for others in groupings(left, degrees):
                yield (frozenset([first, *company]), *others)


def worth(
    groups: Sequence[frozenset[str]],
    devices: Mapping[str, str],
    rates: Mapping[int, int],
    before: Sequence[Group],
    at_once: int | None,
) -> Worth | None:
    """What a grouping is worth, from the words of the design; None where it is not allowed."""
    if any(len({devices[name] for name in group}) > 1 for group in groups):
        return None
    speeds = sorted((rates[len(group)] for group in groups), reverse=True)
    sizes = sorted((len(group) for group in groups), key=lambda size: (-rates[size], -size))
    if at_once is not None and any(size > 1 for size in sizes[at_once:]):
        return None  # beyond the sequences that there are, devices work alone
    idle = len(devices) - sum(map(len, groups))
    standing = {frozenset(group.members) for group in before}
    kept = sum(len(group) for group in groups if group in standing)
    return sum(speeds[:at_once]), -idle, kept, len(groups)


def worth_of_layout(layout: Layout, devices, rates, before, at_once) -> Worth | None:
    return worth([frozenset(group.members) for group in layout], devices, rates, before, at_once)


@st.composite
def cases(draw: st.DrawFn):
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    devices = {f"d{place}{n}": f"i{place}" for place, count in enumerate(counts) for n in range(count)}
    degrees = draw(st.frozensets(st.sampled_from([1, 2, 3, 4]), min_size=1))
    step_s = {degree: draw(st.sampled_from([0.3, 0.5, 0.6, 1.0, 2.0])) for degree in sorted(degrees)}
    before: list[Group] = []
    for instance in sorted(set(devices.values())):
        names = draw(st.permutations(sorted(n for n in devices if devices[n] == instance)))
        while names:
            size = draw(st.integers(1, len(names)))
            if draw(st.booleans()):
                gone = ("gone",) if draw(st.booleans()) else ()
                before.append(Group(instance, (*names[:size], *gone)))
            names = names[size:]
    return devices, step_s, before, draw(st.sampled_from([None, 1, 2, 3]))


@examples(3)
@given(cases())
def test_no_other_grouping_is_worth_more(case):
    devices, step_s, before, at_once = case
    layout = plan_layout(devices, step_s, before, at_once)
    rates = rate_of(step_s)
    found = worth_of_layout(layout, devices, rates, before, at_once)
    every = groupings(sorted(devices), frozenset(step_s))
    best = max(value for g in every if (value := worth(g, devices, rates, before, at_once)) is not None)
    assert found == best


@given(cases())
def test_each_device_is_in_one_group_or_idle_and_each_group_in_one_instance(case):
    devices, step_s, before, at_once = case
    layout = plan_layout(devices, step_s, before, at_once)
    named = [name for group in layout for name in group.members]
    assert len(named) == len(set(named)) and set(named) <= devices.keys()
    for group in layout:
        assert {devices[name] for name in group.members} == {group.instance}
        assert len(group.members) in step_s
    assert len(named) == len(devices) or 1 not in step_s, "who may work alone is not idle"


@given(cases(), st.integers(0, 9))
def test_a_table_for_more_sequences_gives_the_same_groups(case, more):
    devices, step_s, before, at_once = case
    largest = None if at_once is None else at_once + more
    assert plan_layout(devices, step_s, before, at_once, largest) == plan_layout(
        devices, step_s, before, at_once
    )


@given(cases())
def test_to_plan_again_changes_nothing(case):
    devices, step_s, before, at_once = case
    layout = plan_layout(devices, step_s, before, at_once)
    assert plan_layout(devices, step_s, layout, at_once) == layout
