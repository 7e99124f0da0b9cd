"""ROSE's lending by hand: the rule, the devices that come and are called back, and a run on them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.lent_devices import LOOK_EVERY_S, LentDevices, ServingLoad
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from tests.simulated import same, small_config, times_of


def lent_by(looks: list[int | None], devices: int, slack_s: float = 2.0) -> list[int]:
    """How many devices are lent after each look at those that are free; None is where training begins."""
    free = [look for look in looks if look is not None]
    lender = LentDevices(devices, slack_s, 1.0, lambda at_s: free[round(at_s / LOOK_EVERY_S)])
    found = [0]
    for look in looks:
        if look is None:
            lender.on_training()
            continue
        kinds = [step.kind for step in lender.due((len(found) - 1) * LOOK_EVERY_S)]
        found.append(found[-1] + kinds.count("add") - kinds.count("notice"))
    return found[1:]


def test_all_free_devices_are_lent_until_a_cut_and_none_more_before_the_next_training():
    """Five are free of six lent: half of them stay. Later half of three, and one is free."""
    assert lent_by([4, 8, 5, 6, 1, None, 6], devices=6) == [4, 6, 3, 3, 1, 6]
    assert lent_by([8, 2], devices=8) == [8, 2], "no more than are free"
    assert lent_by([4], devices=4, slack_s=1.0) == [0], "no request can wait for a step"


@given(st.integers(1, 8), st.lists(st.one_of(st.integers(0, 10), st.none()), max_size=30))
def test_never_more_than_are_free_and_no_growth_between_a_cut_and_the_next_training(
    devices: int, looks: list[int | None]
):
    found, before, frozen = iter(lent_by(looks, devices)), 0, False
    for free in looks:
        if free is None:
            frozen = False
            continue
        lent = next(found)
        assert 0 <= lent <= min(free, devices)
        assert lent <= before or not frozen
        frozen = frozen or lent < before
        assert frozen or lent == min(free, devices)
        before = lent


def test_devices_come_are_warned_and_go_when_the_slack_is_over():
    free = {0.0: 2, 60.0: 1, 120.0: 2, 180.0: 2}
    lent = LentDevices(2, 3.0, 1.0, free.__getitem__)
    assert [(step.at_s, step.kind, step.instance) for step in lent.due(63.0)] == [
        (0.0, "add", "lent-1"), (0.0, "add", "lent-2"),
        (60.0, "notice", "lent-2"), (63.0, "remove", "lent-2"),
    ]  # fmt: skip
    assert lent.next_s == 120.0 and lent.due(120.0) == [], "frozen"
    lent.on_training()
    assert [(step.at_s, step.kind, step.instance) for step in lent.due(180.0)] == [(180.0, "add", "lent-3")]


def test_free_devices_follow_the_hour_of_the_day():
    calm = ServingLoad(mean=0.5, swing=0.25, noise=0.0).free(8, random.Random(0))
    found = [calm(3600.0 * hour) for hour in range(24)]
    assert (min(found), max(found)) == (2, 5), "two to six of eight, in whole ones"
    assert calm(86400.0) == found[0]
    full = ServingLoad(mean=1.0, swing=1.0, noise=0.5).free(8, random.Random(0))
    assert {full(60.0 * minute) for minute in range(1440)} <= set(range(9))


@pytest.mark.parametrize(("slack_s", "joined"), [(3.0, 2), (0.5, 0)])
def test_a_run_on_lent_devices_loses_no_step(slack_s: float, joined: int):
    """One of two lent devices is called back at 60 s; steps take a second."""
    load = ServingLoad(slack_s=slack_s)
    plan = SimulatedPlan(FleetPlan(1, 2, 1, 10.0, 2.5, serving=load), lends=True)

    def run(repeats: bool):
        lent = LentDevices(2, slack_s, 1.0, lambda at_s: 2 if at_s < 60 else 1)
        return Simulation(small_config(4), plan, times_of(), lent, repeats).run()

    found = run(True)
    assert same(found, run(False)), "repeated phases change nothing"
    assert (found.joined, found.redone) == (joined, 0)
    assert found.notices == found.losses == (1 if joined else 0)
    assert sum(found.spent.values()) == sum(found.paid.values()), "each second is in one state"
    alone = found.paid["spot"] == 0
    assert alone == (not joined) and found.paid["reserved"] == found.wall > 60 * TICKS_PER_S
