"""What holds of every simulated run whose devices share samples, whatever is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import Strategy
from gpu_runtime.simulator.comparison.what_if import undisturbed
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.spot.traces.trace import Trace
from tests.property.test_simulated_runs import rough_trace
from tests.simulated import check_conserved, simulated, small_config, times_of

SECONDS = st.floats(0.001, 3.0)
DRAWN = settings(max_examples=15, deadline=None)
DEGREES = st.sampled_from([1, 2, 4])
SHARED = {2: 0.6, 4: 0.4}


def shared_run(trace: Trace, spot: int, degrees: dict[str, Any], **more: Any) -> SimulatedRun:
    config = small_config(sequence_parallel=degrees)
    return simulated(config, more.pop("reserved"), spot, trace, keeps_intervals=True, **more)


@DRAWN
@given(
    reserved=st.integers(1, 3),
    spot=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    degrees=st.sampled_from(
        [{"rollout": 2}, {"rollout": 4, "evaluate": 2}, {"rollout": 2, "explore": 2}, {"evaluate": 4},
         {"rollout": "auto", "evaluate": "auto"}, {"rollout": "auto", "evaluate": 2}]
    ),
    strategy=st.sampled_from((PLAIN, STALE, FRESH)),
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
    runs = [
        shared_run(
            rough_trace(spot, seed), spot, degrees, reserved=reserved, strategy=strategy, notice_s=notice_s,
            times=times, instance_devices=instance_devices, repeats=repeats, ways=ways,
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
    ema=st.sampled_from([0.0, 0.9]),
    seconds=st.tuples(*[SECONDS] * 5),
)
def test_without_losses_groups_and_the_formula_agree_to_the_tick(
    groups: int, degrees: tuple[int, int], prompts: int, every: int, ema: float, seconds: tuple[float, ...]
):
    two, four, score, weights, regroup = seconds
    times = times_of({2: two, 4: four}, score=score, weights=weights, regroup=regroup)
    settings = dict(zip(("rollout", "evaluate"), degrees, strict=True))
    config = small_config(3, prompts, every, optimizer={"ema_decay": ema}, sequence_parallel=settings)
    run = simulated(config, 4 * groups, times=times, instance_devices=4)
    assert run.wall == undisturbed(config, times, 4 * groups)
