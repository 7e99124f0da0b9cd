"""Each policy's plan, and runs of the plans whose times are worked by hand.

Four prompts of four samples in batches of four: four batches of five steps, a second each, and one to
decode. Judging takes a second a batch, beside the devices; training one a sample, weights two, a start ten.
An evaluation is one batch of seven steps: 11 s with the weights and its judging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.simulator.comparison.policies import (
    DEFAULT_POLICIES,
    POLICIES,
    default_policies,
    policies_of,
)
from gpu_runtime.simulator.comparison.what_if import (
    PolicyAnswer,
    Spread,
    best_of,
    better_but_simulated,
    simulated_policies,
)
from gpu_runtime.simulator.devices import PhaseWork, SimulatedDevice
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.simulated_feed import SimulatedFeed
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop
from gpu_runtime.spot.traces.trace import Trace
from storage.errors import ConfigurationError
from tests.simulated import STAYS, simulated, small_config, spot_trace, times_of

ONE = small_config(iterations=1)
OFFER = FleetPlan(2, 6, 2, 10.0, 2.5)
BEGINS_S = 10 + 11
"""When the first rollout begins: a start and an evaluation."""


def run(of: Trace | None, notice_s: float = 0.0, spot: int = 1, **ways: Any) -> SimulatedRun:
    """One iteration on a reserved device that trains, and spot ones."""
    found = simulated(ONE, 1, 0 if of is None else spot, of, notice_s=notice_s, ways=ways)
    assert sum(found.spent.values()) == sum(found.paid.values()), "each second is in one state"
    return found


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("reserved", SimulatedPlan(replace(OFFER, spot=0))),
        ("on-demand", SimulatedPlan(FleetPlan(8, 0, 8, 10.0, 2.5))),
        ("spot", SimulatedPlan(OFFER)),
        ("spotlight", SimulatedPlan(OFFER, STALE)),
        ("critical-path", SimulatedPlan(OFFER, FRESH, 24.0)),
        ("sized", SimulatedPlan(replace(OFFER, decided="cheapest"))),
        ("astraflow", SimulatedPlan(replace(OFFER, decided="astraflow"))),
        ("window", SimulatedPlan(OFFER, seeds=True)),
        ("pushed", SimulatedPlan(OFFER, pushes=True)),
        ("larger-batch", SimulatedPlan(OFFER, more_samples=24.0)),
        ("lending", SimulatedPlan(OFFER, lends=True)),
        ("shared", SimulatedPlan(OFFER, runs=2)),
        ("static-sp", SimulatedPlan(OFFER, static_groups=True)),
    ],
)
def test_the_plan_of_each_policy(name: str, plan: SimulatedPlan):
    (policy,) = policies_of([name])
    assert policy.plan(OFFER, 24.0) == plan


def test_what_no_live_run_does_with_groups_is_left_out_and_static_groups_are_compared():
    alone = {"rollout": 1, "evaluate": 1, "explore": 1}
    assert default_policies(alone) == DEFAULT_POLICIES
    shared = [policy.name for policy in default_policies(alone | {"rollout": 2})]
    assert shared == ["reserved", "on-demand", "spot", "spotlight", "critical-path", "static-sp"]
    measured = [policy.name for policy in default_policies(alone | {"rollout": 0})]
    assert measured == shared[:-1]


def test_what_is_dealt_to_an_idle_device_that_is_gone_is_dealt_again():
    """`t` comes at 12 s, loads for 10 and takes the weights for 2: it idles in a phase that is dealt."""
    events = (0.0, "add", "s"), (12.0, "add", "t"), (25.0, "remove", "t"), (26.0, "remove", "s")
    found = run(spot_trace(*events), spot=2, pushes=True)
    assert found.batches == 4 and found.losses == 2


def test_policies_are_named_and_spotlight_is_simulated_for_those_that_need_its_drafts():
    assert policies_of(policy.name for policy in POLICIES) == POLICIES
    assert [policy.name for policy in policies_of(["window", "spot"])] == ["spot", "window"]
    assert [p.name for p in simulated_policies(policies_of(["larger-batch"]))] == [
        "spotlight",
        "larger-batch",
    ]
    assert simulated_policies(DEFAULT_POLICIES) == DEFAULT_POLICIES
    with pytest.raises(ConfigurationError, match="policy 'bid' is unknown; choose from reserved, "):
        policies_of(["spot", "bid"])
    with pytest.raises(ConfigurationError, match="at least one policy"):
        policies_of([])


def test_trainers_roll_out_for_the_window_and_train_while_the_spot_device_goes_on():
    # 24 s of rollout, 16 of training, one device each: a window of (24 - 16) / 2 = 4 s, after 2 for weights.
    # Both end a batch at 27; the spot device ends the two others at 33 and 39. Judged at 28, 29, 34 and 40,
    # each trained on for 4 s: from 28 to 44.
    found = run(STAYS, seeds=True)
    assert found.iterations == [(44 - BEGINS_S) * TICKS_PER_S]
    assert found.spent["reserved", "train"] == 16 * TICKS_PER_S
    assert found.spent["spot", "rollout"] == 3 * 6 * TICKS_PER_S
    assert found.wall_s == 44 + 11
    assert run(STAYS).wall_s == 51 + 11


@pytest.mark.parametrize(
    ("lost_s", "notice_s", "trained_s"),
    [
        # At 30.5 the spot device has committed two of its second batch's five steps. The trainer is at the
        # first group from 28 on; it ends that batch at 36 and the last one at 42, and trains on the others.
        (30.5, 0.0, 42 + 12),
        # A notice at 29.5: the third step, which ends at 30, is handed over; from 32 on the trainer does two
        # steps and decoding, and the last batch.
        (30.5, 1.0, 41 + 12),
        # Judged at 28 and 29, both groups are trained on until 36. The trainer does three steps and decoding
        # until 40, then the two groups that are left.
        (35.0, 0.0, 40 + 8),
    ],
)  # fmt: skip
def test_with_the_last_spot_device_lost_the_trainers_roll_out_the_rest(lost_s, notice_s, trained_s):
    lost = spot_trace((0.0, "add", "s"), (lost_s, "remove", "s"))
    assert run(lost, notice_s, seeds=True).iterations == [(trained_s - BEGINS_S) * TICKS_PER_S]


@pytest.mark.parametrize(("train_sample", "rolled_out_s"), [(1.0, 10), (1.25, 6), (1.5, 2)])
def test_after_the_window_the_spot_device_needs_as_long_as_training(train_sample: float, rolled_out_s: int):
    # 48 s of rollout and 32 of training: a window of (48 - 32) / 2 = 8 s, after 2 for weights that the
    # trainer holds already. It does a batch of 6 s, and two steps of another one. With 40 s of training the
    # window is 4 s, and the trainer ends its batch; with 48 s there is none, and it leaves after two steps.
    longer, times = small_config(iterations=1, prompts=8), times_of(train_sample=train_sample)
    found = simulated(longer, 1, 1, STAYS, times=times, ways={"seeds": True})
    evaluated_s = 2 * 8
    assert found.spent["reserved", "rollout"] == (rolled_out_s + evaluated_s) * TICKS_PER_S


@pytest.mark.parametrize(
    ("reserved", "train_sample", "rented"),
    [(1, 1.0, 1), (1, 0.75, 2), (2, 0.5, 2), (2, 0.75, 1), (1, 2.0, 1)],
)
def test_no_more_spot_devices_are_rented_than_the_training_has_work_for(
    reserved: int, train_sample: float, rented: int
):
    # 24 s of rollout beside 16 s of training is work for one device, beside 12 s for two and beside 8 s for
    # three. A reserved device that does not train is one of them; at least one spot device is rented.
    offered = spot_trace(*((0.0, "add", name) for name in "stu"))
    found = simulated(
        ONE, reserved, 3, offered, times=times_of(train_sample=train_sample), ways={"seeds": True},
        keeps_intervals=True,
    )  # fmt: skip
    rolled_out = {i.worker for i in found.intervals if i.market == "spot" and i.state == "rollout"}
    assert len(rolled_out) == rented


def spans(judged: dict[int, int], free: int, taken_at: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Intervals of training on two groups of six in batches of four, given a trainer's free moments."""
    loop, trainer = EventLoop(), SimulatedDevice("t", "reserved", trains=True).device
    algorithm = small_config(algorithm={"group_size": 6}).algorithm
    feed = SimulatedFeed(loop, [trainer], algorithm, 6, in_order=False)
    feed.enter = lambda *entered: None
    feed.expect(PhaseWork(RequestKind.ROLLOUT, WeightsVersion(0), 3, 5, 4, 12))
    for batch, at in judged.items():
        feed.note(batch, at)
    for at in taken_at:
        loop.run_until(lambda: False, at)
        assert list(feed.take([trainer])) == ["t"] and feed.take([]) == {}
    return feed.end(free)


def test_a_group_is_trained_on_when_its_last_batch_is_judged():
    # The first group needs the first two batches, the second the last two. They rolled out to the end.
    assert spans({0: 10, 1: 30, 2: 20}, 20) == [(30, 42)]
    judged = {0: 10, 1: 12, 2: 30}
    assert spans(judged, 20) == [(20, 26), (30, 36)]
    # One is begun beside the rollout, and is completed after it.
    assert spans(judged, 20, [12]) == [(12, 18), (30, 36)]
    assert spans(judged, 20, [16]) == [(16, 22), (30, 36)]
    assert spans(judged, 33, [12, 30]) == [(12, 18), (30, 36)]


@pytest.mark.parametrize(("notice_s", "redone"), [(0.0, 2), (2.2, 0)])
def test_a_lost_share_is_dealt_to_those_left(notice_s: float, redone: int):
    # Its first batch goes on from the second step, its other one begins anew; as where devices pull.
    lost = spot_trace((0.0, "add", "s"), (24.5, "remove", "s"))
    found = run(lost, notice_s, pushes=True)
    assert found.iterations == [(43 + 1 + 16 - BEGINS_S) * TICKS_PER_S]
    assert (found.returned, found.redone) == (1, redone)


def test_a_device_that_comes_late_has_no_share_of_what_was_dealt():
    late = spot_trace((13.0, "add", "s"))
    # Pulling, it takes two of the four batches; dealt, all four are the reserved device's.
    assert run(late).iterations == [(37 + 1 + 16 - BEGINS_S) * TICKS_PER_S]
    assert run(late, pushes=True).iterations == [(45 + 1 + 16 - BEGINS_S) * TICKS_PER_S]
    assert run(STAYS, pushes=True).wall == run(STAYS).wall
    # Five more samples are one more group of four: five batches of 6 s, 20 s of training.
    assert run(None, more_samples=5.0).wall_s == 10 + 11 + 30 + 1 + 20 + 11


def test_two_runs_share_the_devices_and_the_bill():
    found = run(STAYS, runs=2)
    # Two evaluations end at 32. The first run rolls out on both devices: 2 + 12 + 2 for judging, at 48. The
    # second one on the spot device from 50 on; the trainers join at 64 and do the last batch from 66 to 72,
    # judged at 73. Its training ends at 89, two evaluations at 111.
    assert found.iterations == [(89 - 32) * TICKS_PER_S] and found.wall_s == 111
    assert found.spent["reserved", "train"] == 2 * 16 * TICKS_PER_S
    assert found.usd == pytest.approx(111 * (10.0 + 2.5) / 3600 / 2)
    assert found.batches == 8
    # Lost at 50.5, when no step is committed: the trainers do all four batches from 66 on.
    lost = spot_trace((0.0, "add", "s"), (50.5, "remove", "s"))
    assert run(lost, runs=2).wall_s == 66 + 24 + 1 + 16 + 2 * 11
    # The driver's own time comes after each rollout.
    slower = simulated(ONE, 1, 1, STAYS, times=times_of(driver=3), ways={"runs": 2})
    assert slower.iterations == [(89 - 32 + 2 * 3) * TICKS_PER_S]


def made(name: str, usd: float, drafts: float = 0.0, runs: int = 1) -> PolicyAnswer:
    """A policy with its dollars and drafts."""
    (policy,) = policies_of([name])
    figures = {"usd": Spread.of([usd]), "drafts_per_iteration": Spread.of([drafts])}
    return PolicyAnswer(policy, figures, runs=[SimulatedRun({}, runs=runs)])


def test_the_best_policy_is_one_that_a_live_run_can_follow():
    window, spot, spotlight = made("window", 90), made("spot", 100), made("spotlight", 100.9, drafts=3)
    assert best_of([window, spot, made("reserved", 120)]) == "spot"
    assert best_of([window, spot, spotlight]) == "spotlight", "as cheap to a hundredth, with drafts"
    better = better_but_simulated([window, spot, spotlight])
    assert better is not None and better.policy.name == "window"
    assert better_but_simulated([made("window", 101), spot]) is None
    assert better_but_simulated([made("shared", 50, runs=2), spot]) is None, "two runs are something else"
    assert best_of([window, made("pushed", 95)]) is None
    only = {policy.name for policy in POLICIES if policy.only_simulated is not None}
    assert only == {"window", "pushed", "astraflow", "lending", "shared", "static-sp"}
