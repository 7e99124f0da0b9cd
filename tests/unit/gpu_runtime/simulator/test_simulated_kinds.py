"""Simulated runs whose spot devices are of another kind: times worked by hand.

As in test_simulated_run.py on reserved devices: a step and decoding take a second each, weights two, a start
ten. A spot device takes two for a step, three to decode and for weights, and twelve to start.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.profile import StepTime, WorkloadTimes
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.trace import Trace
from storage.errors import ConfigurationError
from tests.simulated import STAYS, same, simulated, small_config, small_profile, spot_trace, times_of

SLOW = replace(times_of(), spot=times_of(step=2, decode=3, weights=3, start=12))


def run(trace: Trace, times: WorkloadTimes, **more: Any) -> SimulatedRun:
    return simulated(small_config(iterations=1), 1, 1, trace, times=times, **more)


def test_each_device_takes_the_times_of_its_kind():
    slow = run(STAYS, SLOW)
    # The evaluation is over at 21. The reserved device ends batches at 27, 33 and 39, the spot device one at
    # 34. The last is judged at 40; training 16; evaluation 11.
    assert slow.wall_s == 40 + 16 + 11
    assert slow.spent["spot", "rollout"] == 13 * TICKS_PER_S
    assert slow.spent["spot", "load"] == (12 + 3 + 3) * TICKS_PER_S
    assert slow.spent["reserved", "load"] == (10 + 2 + 2) * TICKS_PER_S


def test_what_a_loss_takes_is_counted_in_the_time_of_its_kind():
    gone = spot_trace((0.0, "add", "s"), (30.0, "remove", "s"))
    lost = run(gone, SLOW)
    # Four of the spot device's steps are done and committed at 30, the fifth has begun. The reserved one ends
    # its batches at 27 and 33, that one at 35, and the last at 41.
    assert (lost.returned, lost.redone) == (1, 1) and lost.redone_time == 2 * TICKS_PER_S
    assert lost.wall_s == 41 + 1 + 16 + 11


def test_devices_of_both_kinds_share_a_sample_as_fast_as_the_slower_one():
    config = small_config(1, sequence_parallel={"rollout": 2, "evaluate": 2})
    times = replace(times_of({2: 0.6}), spot=times_of({2: 0.9}, step=2, decode=3, regroup=2))
    shared = simulated(config, 1, 1, STAYS, times=times)
    # Evaluation 2 + 2 + 7 x 0.9 + 3 + 1; rollout 2 + 4 x (4.5 + 3), 1; training 16.
    assert shared.wall_s == pytest.approx(10 + 14.3 + 33 + 16 + 14.3)


@pytest.mark.parametrize("strategy", [PLAIN, STALE])
@pytest.mark.parametrize("degrees", [1, 2])
def test_two_kinds_that_take_the_same_are_one(strategy: Strategy, degrees: int):
    config = small_config(3, every=1, sequence_parallel=dict.fromkeys(("rollout", "evaluate"), degrees))
    gone = spot_trace((0.0, "add", "s"), (50.5, "remove", "s"))
    one = times_of({2: 0.6})
    runs = [simulated(config, 2, 1, gone, strategy, times=times) for times in (one, replace(one, spot=one))]
    assert same(*runs)
    assert runs[0].losses == 1


def test_what_is_not_known_of_a_workload_is_the_same_on_both_kinds():
    profile, spot = small_profile(0.5), small_profile(0.5)
    spot = spot.model_copy(update={"steps": (StepTime(batch=4, seconds=2.0),)})
    drawn = [profile.beside(spot).times(4, 1, 1, random.Random(seed)) for seed in range(5)]
    assert len({times.step for times in drawn}) == 5
    for times in drawn:
        assert times.of("spot").step == pytest.approx(2 * times.step, abs=2)
        assert times.of("spot").weights == times.weights
        assert times.of("reserved") is times
    alone = [profile.times(4, 1, 1, random.Random(seed)) for seed in range(5)]
    assert [replace(times, spot=None) for times in drawn] == alone
    assert all(times.of("spot") is times for times in alone)


def test_two_kinds_need_a_degree_that_both_know():
    two = small_profile().model_copy(update={"steps": (StepTime(batch=4, degree=2, seconds=1.0),)})
    both = small_profile().model_copy(update={"steps": (*small_profile().steps, *two.steps)})
    assert both.beside(two).degrees == two.beside(both).degrees == (2,)
    with pytest.raises(ConfigurationError, match="has degrees 1, but small, for spot devices, 2; name two"):
        small_profile().beside(two)
