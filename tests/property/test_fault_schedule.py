"""Schedules of faults: the same for the same seed, all kinds once there are enough, each due once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.chaos.fault_schedule import (
    FAULT_KINDS,
    FAULT_PHASES,
    Fault,
    draw_faults,
    faults_from_json,
    take_due,
)
from storage.errors import ConfigurationError

seeds = st.integers(0, 2**64 - 1)
schedules = st.builds(
    draw_faults,
    seed=seeds,
    count=st.integers(0, 40),
    length_s=st.floats(0, 1e5),
    iterations=st.integers(1, 20),
    timed_share=st.floats(0, 1),
)


@given(seeds, st.integers(0, 40), st.floats(0, 1e5), st.integers(1, 20), st.floats(0, 1))
def test_the_same_seed_gives_the_same_schedule_within_its_bounds(seed, count, length_s, iterations, share):
    faults = draw_faults(seed, count, length_s, iterations, timed_share=share)
    assert faults == draw_faults(seed, count, length_s, iterations, timed_share=share)
    assert len(faults) == count
    for fault in faults:
        if fault.at_s is not None:
            assert 0 <= fault.at_s <= length_s and fault.phase is None and fault.iteration is None
        else:
            assert fault.phase in FAULT_PHASES and 0 <= (fault.iteration or 0) < iterations


@given(seeds, st.integers(len(FAULT_KINDS), 60))
def test_all_kinds_appear_and_none_much_more_often_than_another(seed, count):
    kinds = [fault.kind for fault in draw_faults(seed, count, 100.0, 5)]
    often = [kinds.count(kind) for kind in FAULT_KINDS]
    assert min(often) >= 1
    assert max(often) - min(often) <= 1


@given(seeds, st.sets(st.sampled_from(FAULT_KINDS), min_size=1))
def test_only_the_kinds_asked_for(seed, kinds):
    faults = draw_faults(seed, 2 * len(kinds), 100.0, 5, kinds=sorted(kinds))
    assert {fault.kind for fault in faults} == kinds


@given(seeds)
def test_the_share_of_timed_faults_at_its_ends(seed):
    assert all(fault.at_s is not None for fault in draw_faults(seed, 20, 100.0, 5, timed_share=1.0))
    assert all(fault.at_s is None for fault in draw_faults(seed, 20, 100.0, 5, timed_share=0.0))


@given(schedules)
def test_json_and_back(faults):
    assert faults_from_json(json.dumps([fault.model_dump() for fault in faults])) == faults


@given(schedules, st.lists(st.floats(0, 2e4), max_size=20))
def test_each_fault_comes_due_once_and_not_before_its_moment(faults, moments):
    pending = list(faults)
    done: list[Fault] = []
    entered = [None, *((iteration, phase) for iteration in range(20) for phase in FAULT_PHASES)]
    for now_s, phase in zip(sorted([*moments, 1e5]), entered, strict=False):
        for fault in take_due(pending, now_s, phase):
            on_time = fault.at_s is not None and fault.at_s <= now_s
            assert on_time or (fault.iteration, fault.phase) == phase
            done.append(fault)
        assert len(done) + len(pending) == len(faults)
    assert all(fault.at_s is None for fault in pending)


def test_two_equal_faults_come_both():
    twice = (Fault(kind="kill", at_s=1.0), Fault(kind="kill", at_s=1.0))
    pending = list(twice)
    assert take_due(pending, 0.5) == []
    assert take_due(pending, 1.0) == list(twice)
    assert take_due(pending, 2.0) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (1, "fault 1 of 1: 1 has no kind, at_s, iteration"),
        ({"at_s": 1}, "kind has no value; set kind=..."),
        ({"kind": "flood", "at_s": 1}, "kind = 'flood': must be one of 'kill', 'notice_then_kill'"),
        ({"kind": "kill", "at_s": 1, "when": 2}, "when: no such setting; the top level has kind, at_s"),
        ({"kind": "kill"}, "give either at_s, or iteration and phase"),
        ({"kind": "kill", "iteration": 1}, "give either at_s, or iteration and phase"),
        ({"kind": "kill", "at_s": 1, "iteration": 1, "phase": "train"}, "give either at_s, or"),
        ({"kind": "kill", "at_s": 1, "phase": "train"}, "give either at_s, or"),
        ({"kind": "kill", "at_s": -1}, "at_s = -1: must be at least 0"),
        ({"kind": "kill", "at_s": float("nan")}, "at_s = nan: must be finite"),
        ({"kind": "kill", "at_s": "1"}, "at_s = '1': must be a number"),
        ({"kind": "kill", "iteration": -1, "phase": "train"}, "iteration = -1: must be at least 0"),
        ({"kind": "kill", "iteration": 0, "phase": "lunch"}, "phase = 'lunch': must be one of 'explore'"),
        ({"kind": "kill", "at_s": 1, "victim": -1}, "victim = -1: must be at least 0"),
        ({"kind": "kill", "at_s": 1, "grace_s": 5}, "fault kill has no grace_s; leave it out"),
        ({"kind": "notice_then_kill", "at_s": 1}, "fault notice_then_kill needs grace_s; give it"),
        ({"kind": "hung_worker", "at_s": 1, "duration_s": -2}, "duration_s = -2: must be at least 0.0"),
        ({"kind": "slow_worker", "at_s": 1, "duration_s": 2, "slowdown": 0.5}, "slowdown = 0.5: must be"),
    ],
)  # fmt: skip
def test_a_fault_that_is_none_is_refused(row, message):
    with pytest.raises(ConfigurationError) as refused:
        faults_from_json(json.dumps([row]))
    assert message in str(refused.value)
    assert str(refused.value).startswith("fault 1 of 1: ")


@pytest.mark.parametrize(("text", "message"), [("[", "not JSON"), ("{}", "is a dict; write a list")])
def test_a_schedule_that_is_none_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        faults_from_json(text)
