"""Invariants of simulated runs, whichever devices are rented, lost or share samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.comparison.what_if import undisturbed
from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from tests.simulated import check_conserved, simulated, small_config, times_of

TIMINGS = st.sampled_from((PLAIN, STALE, FRESH))
SECONDS = st.floats(0.001, 3.0)
WAYS = st.sampled_from(
    [{}, {"seeds": True}, {"pushes": True}, {"runs": 2}, {"more_samples": 7.0}, {"pushes": True, "runs": 2}]
)
AVERAGES = st.fixed_dictionaries(
    {"ema_decay": st.sampled_from([0.0, 0.9]), "ema_interval": st.sampled_from([1, 2, 3, 8])}
)
DRAWN = settings(max_examples=15, deadline=None)
DEGREES = st.sampled_from([1, 2, 4])
SHARED = {2: 0.6, 4: 0.4}


def rough_trace(spot: int, seed: int) -> Trace:
    """Instances that live as long as an iteration or two."""
    shape = TraceShape(
        spot, 2000.0, mean_lifetime_s=60.0, zones=1, mean_reacquire_s=30.0, min_reacquire_s=1.0
    )
    return generate_trace(shape, seed)


@DRAWN
@given(
    reserved=st.integers(1, 3),
    spot=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    strategy=TIMINGS,
    notice_s=st.sampled_from([0.0, 0.4, 3.0, 30.0]),
    step=SECONDS,
    loss=st.sampled_from([0.0, 0.7, 20.0]),
    score=SECONDS,
    advantage_std=st.sampled_from(["batch", "group"]),
    leave=st.booleans(),
    ways=WAYS,
)
def test_every_paid_moment_is_in_one_state_and_the_same_seed_gives_the_same_bytes(
    reserved: int, spot: int, seed: int, strategy: Strategy, notice_s: float, step: float,
    loss: float, score: float, advantage_std: str, leave: bool, ways: dict[str, Any],
):  # fmt: skip
    strategy = strategy if not ways else PLAIN
    algorithm = {"prompts_per_iteration": 5, "group_size": 3, "advantage_std": advantage_std}
    leave = leave and advantage_std == "group"
    runtime = {"commit_steps": 2, "spot_workers": 8, "trainers_leave": leave}
    config, trace = small_config(algorithm=algorithm, runtime=runtime), rough_trace(spot, seed)
    runs = [
        simulated(
            config, reserved, spot, trace, strategy, notice_s, times_of(step=step, loss=loss, score=score),
            ways, repeats=repeats, keeps_intervals=True,
        )
        for repeats in (True, False)
    ]  # fmt: skip
    check_conserved(runs, reserved)


@DRAWN
@given(
    devices=st.integers(1, 6),
    prompts=st.integers(1, 9),
    every=st.integers(0, 3),
    iterations=st.integers(1, 4),
    ema=AVERAGES,
    training=st.sampled_from([("batch", 1), ("group", 1), ("group", 2), ("none", 3)]),
    group=st.integers(2, 9),
    seconds=st.tuples(*[SECONDS] * 7),
)
def test_without_losses_the_simulator_and_the_formula_agree_to_the_tick(
    devices: int,
    prompts: int,
    every: int,
    iterations: int,
    ema: dict[str, float],
    training: tuple[str, int],
    group: int,
    seconds: tuple[float, ...],
):
    step, decode, score, train, weights, driver, evaluation = seconds
    times = times_of(
        step=step,
        decode=decode,
        score=score,
        train_sample=train,
        weights=weights,
        driver=driver,
        evaluation_step=evaluation,
    )
    algorithm = {
        "prompts_per_iteration": prompts,
        "group_size": group,
        "advantage_std": training[0],
        "updates_per_iteration": min(training[1], prompts),
    }
    config = small_config(iterations, every=every, optimizer=ema, algorithm=algorithm)
    run = simulated(config, devices, times=times)
    assert run.wall == undisturbed(config, times, devices)


@DRAWN
@given(devices=st.integers(1, 6), more=st.integers(1, 6), step=SECONDS)
def test_more_devices_are_never_slower(devices: int, more: int, step: float):
    config, times = small_config(prompts=12), times_of(step=step)
    assert simulated(config, devices + more, times=times).wall <= simulated(config, devices, times=times).wall


@DRAWN
@given(
    spot=st.integers(1, 4),
    which=st.integers(0, 3),
    at_s=st.floats(0.001, 45.0),
    notice_s=st.sampled_from([0.0, 2.0]),
    prompts=st.integers(1, 9),
)
def test_a_loss_never_speeds_up(spot: int, which: int, at_s: float, notice_s: float, prompts: int):
    config = small_config(prompts=prompts)
    there = Trace(tuple(TraceEvent(0.0, "add", f"spot-{n}") for n in range(spot)), 1000.0)
    gone = TraceEvent(round(at_s, 3), "remove", f"spot-{which % spot}")
    lost = replace(there, events=(*there.events, gone))
    calm = simulated(config, 1, spot, there)
    disturbed = simulated(config, 1, spot, lost, notice_s=notice_s)
    assert disturbed.wall >= calm.wall
    assert disturbed.losses == 1 and calm.losses == 0
    assert disturbed.batches == calm.batches


@DRAWN
@given(
    reserved=st.integers(1, 3),
    spot=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    degrees=st.sampled_from(
        [{"rollout": 2}, {"rollout": 4, "evaluate": 2}, {"rollout": 2, "explore": 2}, {"evaluate": 4},
         {"rollout": "auto", "evaluate": "auto"}, {"rollout": "auto", "evaluate": 2}]
    ),
    strategy=TIMINGS,
    notice_s=st.sampled_from([0.0, 0.4, 3.0, 30.0]),
    loss=st.sampled_from([0.0, 0.7, 20.0]),
    regroup=st.sampled_from([0.0, 0.3, 5.0]),
    instance_devices=st.sampled_from([0, 2, 3]),
    static=st.booleans(),
)  # fmt: skip
def test_with_groups_every_paid_moment_is_in_one_state_and_repeating_changes_nothing(
    reserved: int, spot: int, seed: int, degrees: dict[str, Any], strategy: Strategy, notice_s: float,
    loss: float, regroup: float, instance_devices: int, static: bool,
):  # fmt: skip
    """Static groups, which no live run has, are booked as exactly."""
    times, ways = times_of(SHARED, loss=loss, regroup=regroup), {}
    if static:
        ways, strategy, instance_devices = {"static_groups": True}, PLAIN, 0
        degrees = {"rollout": 4 if degrees.get("rollout") == 4 else 2}
    config, trace = small_config(sequence_parallel=degrees), rough_trace(spot, seed)
    runs = [
        simulated(
            config, reserved, spot, trace, strategy, notice_s, times, ways, instance_devices,
            repeats=repeats, keeps_intervals=True,
        )
        for repeats in (True, False)
    ]  # fmt: skip
    check_conserved(runs, reserved)
    assert runs[0].batches == 3 * 4, "each batch of an iteration is rolled out, whatever was lost"


@DRAWN
@given(
    groups=st.integers(1, 3),
    degrees=st.tuples(DEGREES, DEGREES),
    prompts=st.integers(1, 9),
    every=st.integers(0, 3),
    ema=AVERAGES,
    seconds=st.tuples(*[SECONDS] * 5),
)
def test_without_losses_groups_and_the_formula_agree_to_the_tick(
    groups: int, degrees: tuple[int, int], prompts: int, every: int, ema: dict[str, float],
    seconds: tuple[float, ...],
):  # fmt: skip
    two, four, score, weights, regroup = seconds
    times = times_of({2: two, 4: four}, score=score, weights=weights, regroup=regroup)
    settings = dict(zip(("rollout", "evaluate"), degrees, strict=True))
    config = small_config(3, prompts, every, optimizer=ema, sequence_parallel=settings)
    run = simulated(config, 4 * groups, times=times, instance_devices=4)
    assert run.wall == undisturbed(config, times, 4 * groups)
