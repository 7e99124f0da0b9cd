"""Simulated runs whose number of spot devices is decided, by the function that decides a live run's.

Four batches of 6 s; training takes 16 s, weights 2, judging the last batches 1 to 4.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.replay import Replay
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from tests.simulated import same, small_config, spot_trace, times_of

CONFIG = small_config(iterations=4)
ALL_STAY = spot_trace(*((0.0, "add", f"s{number}") for number in range(4)))


def run(spot_usd: float, decided: bool, trace: Trace = ALL_STAY, most: int = 4) -> SimulatedRun:
    fleet = FleetPlan(1, most, 1, 10.0, spot_usd, "cheapest" if decided else None)
    return Simulation(CONFIG, SimulatedPlan(fleet), times_of(), Replay(trace)).run()


def test_devices_that_would_idle_are_given_back_before_the_next_rollout():
    fixed, decided = run(2.5, decided=False), run(2.5, decided=True)
    # Nothing is measured before the first iteration. One spot device costs 12.5 x (12 + 19) = 387.5, none
    # 430, two 465, three 437.5.
    assert decided.wanted == [4, 1, 1, 1]
    assert decided.usd < fixed.usd and decided.wall_s > fixed.wall_s
    assert sum(decided.spent.values()) == sum(decided.paid.values()), "each second is in one state"
    assert decided.paid == {"reserved": 154 * TICKS_PER_S, "spot": 295 * TICKS_PER_S}
    assert fixed.paid == {"reserved": 142 * TICKS_PER_S, "spot": 4 * 142 * TICKS_PER_S}
    assert decided.batches == fixed.batches and decided.losses == 0
    assert run(0.0, decided=True).wanted == [4, 4, 4, 4]
    assert run(9.9, decided=True).wanted == [4, 0, 0, 0]


def test_what_was_given_back_comes_again_where_another_one_is_lost():
    trace = Trace((*ALL_STAY.events, TraceEvent(95.0, "remove", "s0")), 1000.0)
    lost = run(2.5, decided=True, trace=trace)
    assert lost.wanted == [4, 1, 1, 1] and lost.losses == 1
    assert lost.joined == 5, "four at first, and one in place of the lost one"


def test_a_decided_fleet_of_all_that_is_there_is_the_fixed_one():
    """Decisions that change nothing leave every tick as it was."""
    fixed, decided = run(0.01, False, most=3), run(0.01, True, most=3)
    assert decided.wanted == [3, 3, 3, 3]
    assert same(replace(decided, wanted=[]), fixed)
    assert decided.wall_s == fixed.wall_s and fixed.wanted == []
    assert fixed.wall_s * TICKS_PER_S == fixed.wall


def test_astraflow_s_rule_adds_devices_as_long_as_they_cost_no_more():
    def wanted(spot_usd: float) -> list[int]:
        fleet = FleetPlan(1, 4, 1, 10.0, spot_usd, "astraflow")
        plan = SimulatedPlan(fleet)
        return Simulation(CONFIG, plan, times_of(), Replay(ALL_STAY)).run().wanted

    # 24 s of rollout and 19 of rest: f = 24/43, so 3 devices; then 12 and 19 s: 5, but there are 4 batches.
    # 10 x 43 = 430, 12 x 31 = 372 and 13 x 25 = 325 at a dollar; 15 x 31 = 465 at 2.5.
    assert wanted(1.0) == [0, 2, 3, 3]
    assert wanted(2.5) == [0, 0, 0, 0]
