"""Simulated runs whose devices share samples: times worked by hand.

As in test_simulated_run.py: four batches of five steps, an evaluation of one batch of seven, a second to
decode and to judge each, 16 of training, two for weights, ten to start. Two devices share a step in 0.6 s and
take a second to form a group; batches are committed after every second step.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.groups import sharing
from gpu_runtime.scheduling.degree_choice import choose_layout
from gpu_runtime.scheduling.group_layout import Layout
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.trace import Trace
from storage.errors import ConfigurationError
from tests.simulated import STAYS, simulated, small_config, spot_trace, times_of

TWO = {"rollout": 2, "evaluate": 2}
SHARED = {2: 0.6}


def run(spot: int, instances: Trace, degrees: dict[str, Any] | None = None, **more: Any) -> SimulatedRun:
    """One iteration on a reserved device and spot ones."""
    iterations, times = more.pop("iterations", 1), times_of(SHARED, **more.pop("times", {}))
    config = small_config(iterations, sequence_parallel=degrees or TWO)
    return simulated(config, 1, spot, instances, times=times, keeps_intervals=True, **more)


def states(done: SimulatedRun, worker: str) -> list[tuple[str, float, float]]:
    """What a device did, in seconds."""
    mine = [one for one in done.intervals if one.worker == worker]
    return [(one.state, one.started_at / TICKS_PER_S, one.ended_at / TICKS_PER_S) for one in mine]


def test_two_devices_share_each_batch_and_form_a_group_in_every_phase():
    shared = run(1, STAYS)
    # Start 10; evaluation 2 + 1 + 7 x 0.6 + 1 + 1; rollout 1 + 4 x (3 + 1), 1; training 16; evaluation 9.2.
    assert shared.wall_s == pytest.approx(10 + 9.2 + 17 + 1 + 16 + 9.2)
    assert shared.spent["spot", "regroup"] == shared.spent["reserved", "regroup"] == 3 * TICKS_PER_S
    assert shared.spent["spot", "rollout"] == shared.spent["reserved", "rollout"]
    assert shared.batches == 4


def test_a_group_that_loses_a_member_is_broken_and_its_batch_goes_on_from_the_commit():
    # The rollout begins at 19.2, the group works from 20.2 on; its second batch begins at 24.2. At 26 three
    # of its steps are done, two are committed at 25.4.
    lost = run(1, spot_trace((0.0, "add", "s"), (26.0, "remove", "s")))
    # The survivor works alone at once: 3 + 1 s for the rest, 6 for each of the two others; evaluation 2 + 9.
    assert lost.wall_s == pytest.approx(26 + 4 + 12 + 1 + 16 + 2 + 9)
    assert (lost.losses, lost.returned, lost.redone, lost.batches) == (1, 1, 2, 4)
    assert lost.redone_time == 2 * 2 * 0.6 * TICKS_PER_S, "two devices do two steps again"
    assert lost.paid["spot"] == 26 * TICKS_PER_S


def test_until_the_loss_is_known_the_whole_group_waits():
    late = run(1, spot_trace((0.0, "add", "s"), (26.0, "remove", "s")), times={"loss": 3})
    assert late.wall_s == pytest.approx(29 + 4 + 12 + 1 + 16 + 2 + 9)
    assert late.paid["spot"] == 29 * TICKS_PER_S
    assert ("rollout", 20.2, 29.0) in [
        (state, began, ended) for state, began, ended in states(late, "spot-0") if state == "rollout"
    ]


def test_under_notice_all_members_stop_at_the_next_step_and_nothing_is_lost():
    # At 24.5 the first step of the second batch is under way; it ends at 24.8.
    warned = run(1, spot_trace((0.0, "add", "s"), (30.0, "remove", "s")), notice_s=5.5)
    assert warned.wall_s == pytest.approx(24.8 + 5 + 12 + 1 + 16 + 2 + 9)
    assert (warned.notices, warned.redone, warned.returned) == (1, 0, 1)
    assert ("idle", 24.8, pytest.approx(58.8)) in states(warned, "spot-0"), "it is known to be gone later"


def test_a_newcomer_joins_a_group_once_the_others_have_done_what_they_began():
    joined = run(1, spot_trace((13.0, "add", "s")))
    # Alone: evaluation 12 to 20, judged at 21; the first batch to 27. The newcomer has the weights at 25. At
    # that time all steps of the batch are begun, so it waits; both meet until 28 and do three batches.
    assert joined.wall_s == pytest.approx(28 + 3 * 4 + 1 + 16 + 9.2)
    assert ("regroup", 25.0, 28.0) in states(joined, "spot-0")
    assert ("regroup", 27.0, 28.0) in states(joined, "reserved-0")


def test_of_three_devices_the_one_alone_joins_the_survivor_after_two_chunks():
    lost = run(2, spot_trace((0.0, "add", "s"), (0.0, "add", "t"), (28.5, "remove", "s")))
    # The evaluation's batch is done alone by 20, judged by 21: the group is formed a second later. Rollout:
    # alone from 21 to 27; the group's batches from 22 and from 26, of which four steps are committed at 28.4.
    # At 28.5 the one alone has begun its two chunks of four steps, to 31; both meet until 32, and end one
    # step of either batch in 1.6 s each.
    assert lost.wall_s == pytest.approx(32 + 2 * 1.6 + 1 + 16 + 9.2)
    assert ("regroup", 28.5, 32.0) in states(lost, "reserved-0")
    assert ("regroup", 31.0, 32.0) in states(lost, "spot-1")
    assert (lost.returned, lost.redone) == (2, 1)


def test_a_group_whose_members_are_lost_before_it_is_formed_holds_up_nothing():
    losses = [(24.3, "remove", "t"), (24.6, "remove", "s"), (24.6, "remove", "u")]
    of = spot_trace(*((0.0, "add", name) for name in "stu"), *losses)
    config = small_config(1, prompts=8, sequence_parallel={"rollout": 2})
    lost = simulated(config, 1, 3, of, times=times_of(SHARED), instance_devices=3)
    # At 24.3 the pair has committed two steps. Its survivor waits for the third device, which has begun steps
    # until 25, when both are lost. The reserved device ends its batch at 27, three steps of either of theirs
    # at 31 and 35, and the five others at 65.
    assert lost.wall_s == pytest.approx(65 + 1 + 32 + 11)
    assert (lost.losses, lost.returned) == (3, 2)


def test_of_drafts_that_are_not_made_no_time_is_asked():
    config = small_config(1, sequence_parallel={"rollout": 2, "evaluate": 2, "explore": 4})
    assert simulated(config, 1, 1, STAYS, times=times_of(SHARED)).batches == 4
    with pytest.raises(ConfigurationError, match=r"sequence_parallel\.explore is 4"):
        simulated(config, 1, 1, STAYS, STALE, times=times_of(SHARED))


def test_only_kinds_above_one_are_shared_and_groups_never_cross_instances():
    rollouts = run(1, STAYS, {"rollout": 2})
    # Evaluations alone: 2 + 8 + 1, and the last one takes the new weights.
    assert rollouts.wall_s == pytest.approx(10 + 11 + 17 + 1 + 16 + 11)
    apart, alone = run(1, STAYS, instance_devices=1), run(1, STAYS, {"rollout": 1})
    assert apart.wall == alone.wall
    assert ("spot", "regroup") not in apart.spent


def test_drafts_are_shared_among_those_that_do_not_train():
    two = spot_trace((0.0, "add", "s"), (0.0, "add", "t"))
    done = run(2, two, {"explore": 2}, strategy=STALE, iterations=2)
    # The window is from 33, when three devices have rolled out, to 50. The group is formed at 34 and delivers
    # batches at 38, 42, 46 and 50; the last one is not judged in time.
    assert done.spent["spot", "explore"] == 2 * 16 * TICKS_PER_S
    assert done.spent["spot", "regroup"] == 2 * TICKS_PER_S
    assert ("reserved", "regroup") not in done.spent
    assert done.drafts == 12


def test_measured_times_find_that_sharing_is_faster():
    auto = {"rollout": "auto", "evaluate": "auto"}
    times = times_of({2: 0.3}, regroup=0.05)
    config = small_config(2, sequence_parallel=auto)
    found = simulated(config, 1, 1, STAYS, times=times, keeps_intervals=True)
    # The first evaluation measures one device: 2 + 8 + 1. Then two are tried, and keep their group: batches
    # of 1.5 + 1 s. The last evaluation takes 2.1 + 1.
    iteration = 0.05 + 10 + 1 + 16
    assert found.wall_s == pytest.approx(10 + 11 + iteration + 2 + iteration + 2 + 0.05 + 3.1 + 1)


def test_measured_times_find_that_sharing_is_slower():
    auto = {"rollout": "auto", "evaluate": "auto"}
    config = small_config(6, prompts=16, sequence_parallel=auto)
    slow = simulated(config, 1, 1, STAYS, times=times_of({2: 1.2}, regroup=0.05))
    alone = simulated(small_config(6, prompts=16), 1, 1, STAYS)
    # The trial costs some chunks of the first rollout; after that each device works alone.
    assert slow.iterations[1:-1] == alone.iterations[1:-1]
    assert alone.iterations[0] < slow.iterations[0] < 1.3 * alone.iterations[0]


def four_devices(shared: dict[int, float], batches: int, evaluated: int = 17, **seconds: Any) -> SimulatedRun:
    """Evaluate so many batches, whose times are measured, then roll some out; all else takes no time."""
    nothing = dict.fromkeys(("decode", "score", "train_sample", "weights", "start"), 0)
    config = small_config(
        1, batches, sequence_parallel={"rollout": "auto", "evaluate": "auto"},
        evaluation={"every": 0, "prompts": 4 * evaluated},
    )  # fmt: skip
    times = times_of(shared, **nothing, regroup=0.1, **seconds)
    return simulated(config, 4, times=times, keeps_intervals=True)


SUPERLINEAR = {2: 0.4, 4: 0.15}
"""One device is too small: sharing wins throughput too."""
COSTLY = {2: 0.8, 4: 0.6}
"""Sharing shortens an image, but costs throughput."""
USELESS = {2: 1.1, 4: 1.2}

TOGETHER = ("regroup", 0.0, 0.1)


@pytest.mark.parametrize(
    ("shared", "batches", "rollout"),
    [
        (SUPERLINEAR, 16, 4 * [[TOGETHER, ("rollout", 0.1, 12.1)]]),  # as with a fixed degree
        # Four rounds of a batch each, and the last batch is shared by all.
        (COSTLY, 17, 4 * [[("rollout", 0.0, 20.0), ("regroup", 20.0, 20.1), ("rollout", 20.1, 23.1)]]),
        # With fewer batches than devices, none is idle:
        (COSTLY, 1, 4 * [[TOGETHER, ("rollout", 0.1, 3.1)]]),
        (COSTLY, 2, 4 * [[TOGETHER, ("rollout", 0.1, 4.1)]]),  # a pair each
        # or two of four share one of three, if it then ends sooner and the others no later.
        ({2: 0.6, 4: 0.5}, 3, [
            *2 * [[TOGETHER, ("rollout", 0.1, 3.1), ("idle", 3.1, 5.0)]], *2 * [[("rollout", 0.0, 5.0)]]
        ]),
        (USELESS, 17, [
            [("rollout", 0.0, 25.0)], *3 * [[("rollout", 0.0, 20.0), ("idle", 20.0, 25.0)]]
        ]),
    ],
)  # fmt: skip
def test_with_known_times_devices_share_what_ends_sooner(
    shared: dict[int, float], batches: int, rollout: list[list[tuple[str, float, float]]]
):
    done = four_devices(shared, batches)
    begin_s, end_s = (end / TICKS_PER_S for *_, end in done.ends[:2])
    found = [
        [
            (state, round(began - begin_s, 6), round(ended - begin_s, 6))
            for state, began, ended in states(done, f"reserved-{number}")
            if begin_s <= began < end_s
        ]
        for number in range(4)
    ]
    assert sorted(rollout) == sorted(found)


def test_a_phase_too_short_for_a_trial_makes_none():
    short = four_devices({2: 0.05, 4: 0.02}, 4, evaluated=1, step=0.1)
    assert ("reserved", "regroup") not in short.spent


@pytest.mark.parametrize(
    ("shared", "measured", "most_s"),
    [
        (SUPERLINEAR, [1, 2, 4], 35),  # sooner than if all worked alone
        (COSTLY, [1, 2, 4], 1.25 * 35),
        (USELESS, [1, 2], 1.25 * 35),  # four are not tried where two are no faster
    ],
)
def test_trials_cost_little_and_a_choice_is_made_again_only_where_something_has_changed(
    monkeypatch: pytest.MonkeyPatch, shared: dict[int, float], measured: list[int], most_s: float
):
    made: list[tuple[Any, ...]] = []

    def choose(places: Any, standing: Any, left: Any, times: Any, degrees: Any) -> Layout:
        made.append((places, standing, left, times.known, times.regroup_s))
        return choose_layout(places, standing, left, times, degrees)

    monkeypatch.setattr(sharing, "choose_layout", choose)
    done = four_devices(shared, 17)
    assert len(made) > 1 and all(one != two for one, two in pairwise(made))
    times = {1: 1.0} | shared
    assert made[-1][3] == pytest.approx({degree: times[degree] for degree in measured})
    assert done.ends[0][2] < most_s * TICKS_PER_S


def test_static_groups_restart_cold_where_elastic_ones_go_on():
    gone = spot_trace((0.0, "add", "s"), (26.0, "remove", "s"), (26.0, "add", "t"))
    static = run(1, gone, ways={"static_groups": True})
    # The group is formed once, at 13: the rollout begins at 19.2, the second batch at 23.2; at 26 four steps
    # are committed. Start and weights take both until 38, the group until 39: 1.6 s, and two batches of 4.
    assert static.wall_s == pytest.approx(39 + 1.6 + 8 + 1 + 16 + 2 + 5.2 + 1)
    assert ("load", 26.0, 38.0) in states(static, "reserved-0")
    assert run(1, gone).wall < static.wall
    calm = run(1, STAYS, ways={"static_groups": True})
    assert calm.spent["spot", "regroup"] == TICKS_PER_S, "without losses they meet once"
    assert calm.wall_s == pytest.approx(run(1, STAYS).wall_s - 2)


@pytest.mark.parametrize(
    ("degrees", "ways", "message"),
    [
        ({"rollout": 4}, {}, "rollout is 4, but step times are known only for degrees 1, 2"),
        ({"rollout": "auto"}, {"static_groups": True}, "static groups have a fixed degree"),
        ({"rollout": 2}, {"seeds": True}, "a window in which trainers roll out is simulated only for"),
        ({"evaluate": 2}, {"runs": 2}, "sharing devices between two runs is simulated only for devices"),
    ],
)
def test_what_no_live_run_does_is_refused(degrees: dict[str, Any], ways: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        run(1, STAYS, degrees, ways=ways)
