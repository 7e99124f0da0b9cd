"""Whatever was measured and is left: groups fit, a choice stands, and only a trial leaves devices out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.scheduling.degree_choice import (
    LEAST_GAIN,
    StepTimeTable,
    batch_ends_s,
    choose_layout,
    degree_to_try,
    name_of,
)
from gpu_runtime.scheduling.group_layout import Group, Layout
from gpu_runtime.scheduling.requests import UnderWay, WorkLeft
from tests.examples import examples

DEGREES = (1, 2, 3, 4)


@st.composite
def cases(draw: st.DrawFn):
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    devices = {f"d{place}{n}": f"i{place}" for place, count in enumerate(counts) for n in range(count)}
    step_times = StepTimeTable()
    for degree in draw(st.sets(st.sampled_from(DEGREES))):
        for _ in range(2):
            step_times.note(degree, draw(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0])), first=False)
    step_times.note_regroup(draw(st.sampled_from([0.01, 0.2, 3.0])))
    before: list[Group] = []
    for instance in sorted(set(devices.values())):
        names = draw(st.permutations(sorted(n for n in devices if devices[n] == instance)))
        while names:
            size = draw(st.integers(1, len(names)))
            before += [Group(instance, tuple(names[:size]))] if draw(st.booleans()) else []
            names = names[size:]
    under_way = {}
    for group in before:
        if draw(st.booleans()):
            steps = draw(st.integers(1, 10))
            under_way[name_of(group)] = UnderWay(steps, draw(st.integers(0, min(2, steps))))
    return (
        devices,
        before,
        WorkLeft(tuple(draw(st.lists(st.integers(1, 10), max_size=12))), under_way),
        step_times,
    )


def chosen(case) -> Layout:
    devices, before, left, step_times = case
    return choose_layout(devices, before, left, step_times, DEGREES)


@examples(6)
@given(cases())
def test_every_device_is_in_one_group_of_its_instance(case):
    devices, _, left, step_times = case
    layout = chosen(case)
    members = [member for group in layout for member in group.members]
    assert len(members) == len(set(members))
    if set(members) != set(devices):  # a trial has all batches
        trial = degree_to_try(devices, step_times, DEGREES)
        assert trial in {len(group.members) for group in layout} and len(layout) == left.batches
    for group in layout:
        assert {devices[name] for name in group.members} == {group.instance}


@examples(6)
@given(cases())
def test_groups_change_only_where_the_phase_ends_clearly_sooner(case):
    devices, before, left, step_times = case
    groups = chosen(case)
    if (
        degree_to_try(devices, step_times, DEGREES) is not None
        or set(groups) == set(before)
        or not left.batches
    ):
        return
    stay = [group for group in before if len(group.members) in step_times.known]
    taken = {member for group in stay for member in group.members}
    stay += [Group(devices[name], (name,)) for name in devices if name not in taken]
    if set(groups) == set(stay):
        return
    now, as_it_was = (
        batch_ends_s(some, before, left, step_times.known, step_times.regroup_s) for some in (groups, stay)
    )
    assert max(now) <= max(as_it_was)
    sooner_on_the_whole = left.batches < len(stay) and sum(now) < (1 - LEAST_GAIN) * sum(as_it_was)
    assert max(now) < (1 - LEAST_GAIN) * max(as_it_was) or sooner_on_the_whole


@given(cases())
def test_a_choice_stands_while_nothing_else_is_known(case):
    devices, before, left, step_times = case
    groups = chosen(case)
    stand = {name_of(group) for group in before} & {name_of(group) for group in groups}
    under_way = {name: work for name, work in left.under_way.items() if name in stand}
    back = tuple(work.steps for name, work in left.under_way.items() if name not in stand)
    after = WorkLeft(back + left.waiting, under_way)
    settled = choose_layout(devices, groups, after, step_times, DEGREES)
    again = choose_layout(devices, settled, after, step_times, DEGREES)
    assert set(again) == set(settled)
