"""Simulated runs whose times are worked by hand.

Four prompts of four samples in batches of four: four batches of five steps, a second each, and one to
decode. Judging takes a quarter of a second an image, beside the devices; training one a sample, weights two,
a start ten.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_runtime.exploration.strategies.fresh import FRESH
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.simulator.devices import SimulatedDevice
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.generation import GenerationPhase
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, EventLoop
from gpu_runtime.spot.traces.trace import Trace
from storage.errors import ConfigurationError
from tests.simulated import STAYS, same, simulated, small_config, spot_trace, times_of

ONE = small_config(iterations=1)


def goes(at_s: float) -> Trace:
    """A spot instance from the beginning, until it is lost."""
    return spot_trace((0.0, "add", "s"), (at_s, "remove", "s"))


def comes(at_s: float) -> Trace:
    return spot_trace((at_s, "add", "s"))


def test_one_device_does_all_in_turn():
    run = simulated(ONE, 1)
    # Start 10; evaluation 2 + 8 + 1; rollout 24 with the same weights; the last batch is judged in 1;
    # training 16; evaluation 11.
    assert run.wall_s == 10 + 11 + 24 + 1 + 16 + 11
    assert run.usd == pytest.approx(73 * 10.0 / 3600)
    assert {state: time / TICKS_PER_S for (_, state), time in run.spent.items()} == {
        "load": 10 + 2 + 2, "rollout": 8 + 24 + 8, "train": 16, "idle": 1 + 1 + 1,
    }  # fmt: skip
    assert {phase: time / TICKS_PER_S for phase, time in run.phases.items()} == {
        "rollout": 24, "reward": 1, "train": 16, "driver": 0, "evaluate": 11 + 11,
    }  # fmt: skip


def fed(updates: int = 1, score: float = 0.25) -> SimulatedRun:
    """The same run, trained on group by group."""
    algorithm = {"prompts_per_iteration": 4, "group_size": 4, "updates_per_iteration": updates}
    return simulated(small_config(iterations=1, algorithm=algorithm), 1, times=times_of(score=score))


def test_trainers_begin_with_the_groups_that_are_judged():
    # The rollout ends at 45, with three groups judged; the fourth is at 46, long before their training is.
    run = fed()
    assert run.wall_s == 45 + 16 + 11
    assert run.phases["reward"] == TICKS_PER_S and run.phases["train"] == 15 * TICKS_PER_S
    assert run.spent["reserved", "train"] == 16 * TICKS_PER_S
    # A batch takes 9 s to judge. After an evaluation that ends at 29, batches are delivered at 35, 41, 47 and
    # 53, and judged at 44, 53, 62 and 71: trained on from 53, 57, 62 and 71.
    assert fed(score=2.25).wall_s == 75 + 19


def test_groups_of_later_updates_wait_for_all_scores():
    # The first and the third group belong to the first update: trained on from 53 and 62. The others follow
    # once the last is judged.
    assert fed(2, score=2.25).wall_s == 71 + 8 + 19
    assert fed(2).wall_s == fed().wall_s


def test_a_trainer_that_finds_nothing_to_roll_out_trains_while_others_go_on():
    # The spot device joins at 22 and pulls from 24 on: it ends batches at 30 and 36, the trainer at 27, 33.
    algorithm = {"prompts_per_iteration": 4, "group_size": 4}
    run = simulated(small_config(iterations=1, algorithm=algorithm), 1, 1, comes(12.0))
    assert run.wall_s == 33 + 16 + 11
    assert run.phases["rollout"] == 15 * TICKS_PER_S and run.spent["reserved", "train"] == 16 * TICKS_PER_S


def leaving(of: Trace, **ways: object) -> SimulatedRun:
    """Two iterations whose trainer may leave a rollout; training takes 16 s, as the second one knows."""
    algorithm = {"prompts_per_iteration": 4, "group_size": 4}
    runtime = {"commit_steps": 2, "spot_workers": 8, "trainers_leave": True}
    config = small_config(iterations=2, algorithm=algorithm, runtime=runtime)
    run = simulated(config, 1, 1, of, **ways)  # type: ignore[arg-type]
    assert sum(run.spent.values()) == sum(run.paid.values()), "each second is in one state"
    return run


def test_a_trainer_leaves_a_rollout_that_the_other_device_ends_no_later_than_it_has_trained():
    # The first rollout lasts from 21 to 33, and training to 49. In the second one both have the weights at
    # 51 and end a batch at 57. The spot device needs 12 s for the other two: less than 6 and 16. It ends
    # them at 63 and 69; batches are judged at 58, 59, 64 and 70, and trained on from 58 to 74.
    run = leaving(STAYS)
    assert run.iterations == [28 * TICKS_PER_S, 25 * TICKS_PER_S]
    assert run.spent["spot", "rollout"] == (12 + 18) * TICKS_PER_S
    assert same(leaving(STAYS, repeats=False), run)


def test_a_trainer_asks_once_all_devices_hold_the_weights():
    # At the beginning of the second rollout three others need 12 s for its four batches, which is less than a
    # batch and training take: the trainer does none. It has done one in the first, and two of evaluations.
    three = spot_trace(*((0.0, "add", name) for name in "stu"))
    algorithm = {"prompts_per_iteration": 4, "group_size": 4}
    runtime = {"commit_steps": 2, "spot_workers": 8, "trainers_leave": True}
    run = simulated(small_config(iterations=2, algorithm=algorithm, runtime=runtime), 1, 3, three)
    assert run.spent["reserved", "rollout"] == (6 + 2 * 8) * TICKS_PER_S


def test_a_trainer_that_has_left_rolls_out_what_a_lost_device_cannot():
    # At 66, when it ends the second group, the lost device has committed two steps of the last batch. The
    # trainer does the others until 70, and trains on the last two groups then.
    assert leaving(goes(66.0)).iterations == [28 * TICKS_PER_S, 29 * TICKS_PER_S]


@pytest.mark.parametrize(
    ("of", "more", "rolled_out_s", "found", "paid_s"),
    [
        # Both deliver at the same time: their two batches are judged in 2.
        (STAYS, {}, 33 + 1, {"joined": 1, "losses": 0}, 62),
        # A place is filled once.
        (spot_trace((0.0, "add", "s"), (0.0, "add", "t")), {}, 33 + 1, {"joined": 1}, 62),
        # The rollout begins at 21. At 24.5 the spot device has done three steps; two are committed at 23. The
        # reserved one ends its batch at 27, the three steps that are left at 31, the two others at 43.
        (goes(24.5), {}, 43, {"losses": 1, "returned": 1, "redone": 2}, 24.5),
        # Under notice it stops at the next step and loses nothing: at 22.3 the second one ends at 23.
        (goes(24.5), {"notice_s": 2.2}, 43, {"notices": 1, "losses": 1, "returned": 1, "redone": 0}, None),
        # It loads, takes the weights and pulls in the midst of a rollout. Loaded at 23, it holds the weights
        # at 25; both do two batches, it ends the last at 37.
        (comes(13.0), {}, 37, {}, 37 + 1 + 16 + 11 - 13),
        # A loss is known later, and the device is paid for until then. Its batch, committed at 23, waits
        # until 28.5: the reserved device begins another one at 27, and goes on with it at 33 for three steps.
        (goes(24.5), {"times": times_of(loss=4)}, 43, {}, 28.5),
        # An instance that finds no place takes the next one that is free. Its worker begins at 24.5 and holds
        # the weights at 36.5. The reserved device, at work until 37, then has one batch left to begin; the
        # other one ends it at 42.5.
        (spot_trace((0.0, "add", "s"), (0.0, "add", "t"), (24.5, "remove", "s")), {}, 42.5, {"joined": 2},
         None),
    ],
)  # fmt: skip
def test_a_spot_device_s_part(of: Trace, more: dict[str, Any], rolled_out_s: float, found, paid_s):
    run = simulated(ONE, 1, 1, of, **more)
    assert run.wall_s == rolled_out_s + 1 + 16 + 11
    assert {name: getattr(run, name) for name in found} == found
    assert paid_s is None or run.paid["spot"] == paid_s * TICKS_PER_S
    assert ("spot", "lost") not in run.spent, "as in the ledger of a live run, no state is of its own"
    assert run.usd == pytest.approx((run.wall_s * 10 + run.paid["spot"] / TICKS_PER_S * 2.5) / 3600)


def test_until_a_loss_is_known_a_device_counts_as_rolling_out():
    assert simulated(ONE, 1, 1, STAYS).share("rollout", "spot") == pytest.approx(12 / 62)
    for loss_s in (0, 4):
        lost = simulated(ONE, 1, 1, goes(24.5), times=times_of(loss=loss_s))
        assert lost.spent["spot", "rollout"] == (3.5 + loss_s) * TICKS_PER_S


def test_the_loss_of_an_idle_device_is_known_with_the_next_phase():
    # The training of the first iteration is from 35 to 51; the second one begins with loading weights.
    assert simulated(small_config(iterations=2), 1, 1, goes(40.0)).paid["spot"] == 51 * TICKS_PER_S


def test_what_died_while_it_loaded_is_paid_for_and_what_loads_at_the_end_is_not():
    dies = spot_trace((20.0, "add", "s"), (25.0, "remove", "s"))
    assert simulated(ONE, 1, 1, dies).paid["spot"] == 5 * TICKS_PER_S
    assert simulated(ONE, 1, 1, comes(70.0)).paid["spot"] == 0


def test_the_driver_s_own_time_is_idle():
    run = simulated(ONE, 1, times=times_of(driver=3, opening=5))
    assert run.wall_s == 73 + 3 + 5
    assert run.iterations == [(24 + 1 + 16 + 3) * TICKS_PER_S]
    assert run.spent["reserved", "idle"] == (1 + 1 + 1 + 3 + 5) * TICKS_PER_S


def test_drafts_fill_the_training_window_and_do_not_lengthen_the_run():
    config = small_config(iterations=2)
    plain = simulated(config, 1, 1, STAYS)
    stale = simulated(config, 1, 1, STAYS, STALE)
    # 2 s of judging and 16 of training hold three batches of drafts; the third is not judged in time. There
    # is one window.
    assert stale.drafts == 8
    assert stale.wall == plain.wall
    assert stale.spent["spot", "explore"] == 18 * TICKS_PER_S
    assert plain.drafts == 0 and ("spot", "explore") not in plain.spent


def test_a_set_number_of_drafts_is_made_to_its_end_if_training_does_not_stop_them():
    exploration = {"strategy": "stale", "drafts": 16, "stop_with_training": False}
    config = small_config(iterations=2, exploration=exploration)
    stale = simulated(config, 1, 1, STAYS, STALE, ways={"drafts": 16})
    # Four batches of 6 s in a window of 18, and a second to judge the last one.
    assert stale.drafts == 16
    assert stale.wall_s == simulated(config, 1, 1, STAYS).wall_s + 7
    assert stale.phases["draft"] == 7 * TICKS_PER_S
    assert stale.spent["spot", "explore"] == 24 * TICKS_PER_S


def test_an_evaluation_of_part_of_the_file_is_not_repeated_as_one_of_the_whole(tmp_path):
    """Eight and five prompts both make two batches, so only the time to score them differs."""
    (tmp_path / "evaluate.txt").write_text("".join(f"prompt {number}\n" for number in range(8)))
    prompts = {"evaluate": str(tmp_path / "evaluate.txt")}
    config = small_config(iterations=4, every=1).changed(evaluation={"prompts": 5}, prompts=prompts)
    walls = [simulated(config, 1, times=times_of(score=2), repeats=of).wall for of in (True, False)]
    assert walls[0] == walls[1]


def test_a_device_takes_the_next_weights_once_it_has_decoded_the_draft_that_it_was_at():
    # The window is from 33 to 51. Drafts take 11 s: the second is decoded from 50 on, until 55.
    config = small_config(iterations=2)
    run = simulated(config, 1, 1, STAYS, STALE, times=times_of(decode=6), keeps_intervals=True)
    (opens,) = {one.started_at for one in run.intervals if one.state == "explore"}
    closes = max(one.ended_at for one in run.intervals if one.state == "explore")
    loads = [one for one in run.intervals if one.worker == "spot-0" and one.state == "load"]
    assert (closes - opens) / TICKS_PER_S == 18
    assert [(one.ended_at - closes) / TICKS_PER_S for one in loads if one.started_at == closes] == [4 + 2]


def test_drafts_on_the_critical_path_lengthen_it():
    config = small_config(iterations=1, exploration={"candidates": 2})
    run = simulated(config, 1, 1, STAYS, FRESH)
    # Eight drafts in two batches: 6 s on two devices, and 2 of judging.
    assert run.drafts == 8
    assert run.wall_s == 62 + 8


def test_a_fleet_that_cannot_train_is_refused():
    with pytest.raises(ConfigurationError, match="3 of 2 reserved devices are to train; give 1 to 2"):
        FleetPlan(2, 0, 3, 10.0, 2.5)


def test_events_of_a_moment_happen_in_the_order_of_their_announcement():
    loop, seen = EventLoop(), []
    for name in "abc":
        loop.at(5, lambda name=name: seen.append(name))
    late = loop.at(7, lambda: seen.append("never"))
    late.cancel()
    assert not loop.run_until(lambda: False, 9)
    assert (seen, loop.now, loop.next_at) == (["a", "b", "c"], 9, None)
    with pytest.raises(ValueError, match="an event at tick 3"):
        loop.at(3, lambda: None)


def test_a_phase_is_not_repeated_on_a_device_that_loads_as_if_it_were_under_notice():
    version = WeightsVersion(0)
    noticed = SimulatedDevice("a", "spot", joined=True, noticed=True)
    loading = SimulatedDevice("b", "spot", joined=False)
    assert noticed.state(version, 0) != loading.state(version, 0)


@pytest.mark.parametrize("notice_s", [0.0, 2.2])
def test_chunks_in_one_call_are_committed_as_if_each_were_a_call(notice_s: float, monkeypatch):
    events = (
        (0.0, "add", "s"),
        (0.0, "add", "t"),
        (24.5, "remove", "s"),
        (54.0, "add", "s"),
        (75.0, "remove", "t"),
    )
    config, calls = small_config(iterations=3), []

    def run() -> SimulatedRun:
        return simulated(config, 1, 2, spot_trace(*events), STALE, notice_s, repeats=False)

    merged = run()
    monkeypatch.setattr(
        GenerationPhase, "undisturbed", lambda phase, device, chunk, left: calls.append(1) or chunk
    )
    assert same(run(), merged)
    assert merged.events < len(calls)
