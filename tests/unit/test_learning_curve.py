"""How the exploration benchmark reads its curves: values worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.exploration import ARMS, TASKS, arm_config
from benchmarks.exploration_map import cell_of
from benchmarks.exploration_summary import (
    Arm,
    Way,
    gains_at_equal_time,
    ratio,
    summarise,
    targets_of,
)
from benchmarks.learning_curve import Curve
from benchmarks.modelled_fleet import Costs, Fleet, costs_of, iteration_s
from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.simulator.comparison.learning_curves import end_of, reached_at

MIXED = Fleet(reserved=4, spot=8, trainers=4, scorers=6)
EVERYWHERE = replace(MIXED, trainers=12)
COSTS = Costs(rollout=0.75, draft=0.5, score=0.25, train=0.5, driver=0.5, planning=1.0)
WITHOUT_DRAFTS = replace(COSTS, planning=0.0)


def test_a_target_is_reached_where_the_running_mean_reaches_it():
    iterations, values = [0, 4, 8, 12, 16], [0.1, 0.1, 0.4, 0.4, 0.7]
    # Running means of three: 0.2 at 4, 0.3 at 8, 0.5 at 12.
    assert reached_at(iterations, values, 0.3) == pytest.approx(8)
    assert reached_at(iterations, values, 0.4) == pytest.approx(10)
    assert reached_at(iterations, values, 0.15) == pytest.approx(4)
    assert reached_at(iterations, values, 0.6) is None


def test_a_rising_curve_reaches_its_own_end():
    rng = random.Random(0)
    for _ in range(200):
        values = [step / 10 + rng.random() * 0.05 for step in range(7)]
        iterations = list(range(0, 28, 4))
        assert reached_at(iterations, values, end_of(values)) == pytest.approx(20)


SLOWLY_JUDGED = replace(MIXED, scorers=1)


@pytest.mark.parametrize(
    ("timing", "fleet", "drafts", "updates", "seconds"),
    [
        # 96 rollouts of .75 s over 12 devices, 64 trained samples over 4 devices, the driver. 24 s of scoring
        # over 6 scorers end before.
        (DraftTiming.NEVER, MIXED, 0, 1, 6 + 8 + 0.5),
        # With one scorer training ends with it, but for the updates after the first one.
        (DraftTiming.NEVER, SLOWLY_JUDGED, 0, 1, 24 + 0.5),
        (DraftTiming.NEVER, SLOWLY_JUDGED, 0, 4, 24 + 6 + 0.5),
        # 48 drafts: 24 s over 8 devices are hidden behind training.
        (DraftTiming.TRAINING_WINDOW, MIXED, 48, 1, 6 + 8 + 0.5),
        # 192 drafts: 96 s over 8 devices outlast it by 4 s. The first of 8 rounds is planned before, the
        # others meanwhile, and each device waits for an eighth of that.
        (DraftTiming.TRAINING_WINDOW, MIXED, 192, 1, 6 + 12 + 1 / 8 + 7 / 8 / 8 + 0.5),
        # They are judged after the rollouts.
        (DraftTiming.TRAINING_WINDOW, SLOWLY_JUDGED, 48, 1, 24 + 12 + 0.5),
        # Over all 12 devices 2 s, and as long for scoring.
        (DraftTiming.BEFORE_ROLLOUT, MIXED, 48, 1, 6 + 0.5 + 2 + 1 / 8 + 7 / 8 / 12 + 8),
        # Where all train there is no window beside training.
        (DraftTiming.TRAINING_WINDOW, EVERYWHERE, 48, 1, 6 + 0.5 + 2 + 1 / 8 + 7 / 8 / 12 + 8 / 3),
    ],
)
def test_the_seconds_of_an_iteration(timing, fleet, drafts, updates, seconds):
    curve = Curve(rollouts=[128, 96, 96], drafts=[0, drafts, 0], samples={"train": 3 * 64})
    costs = COSTS if drafts else WITHOUT_DRAFTS
    assert iteration_s(curve, costs, fleet, timing, updates) == pytest.approx(seconds)


def test_devices_are_never_ahead_of_what_plans_their_drafts():
    curve = Curve(rollouts=[96] * 3, drafts=[0, 48, 0], samples={"train": 3 * 64})
    slow = replace(COSTS, planning=20.0)
    seconds = iteration_s(curve, slow, MIXED, DraftTiming.TRAINING_WINDOW, 1)
    assert seconds == pytest.approx(6 + 20 + 0.5), "48 drafts of half a second take 8 devices 3 s"


def made(
    exact: list[float], every: int = 4, slow: float = 1.0, trained_s: float = 96.0, drafts: int = 48
) -> Curve:
    """A curve of three iterations' work, with the given evaluations."""
    seconds = {"rollout": 216.0, "explore": 72.0, "score": 72.0, "train": trained_s}
    return Curve(
        iterations=list(range(0, every * len(exact), every)),
        score=exact,
        exact=exact,
        distance=[0.3] * len(exact),
        grain=[0.2, *[0.3] * (len(exact) - 1)],
        rollouts=[96, 96, 96],
        drafts=[drafts] * 3,
        seconds={kind: slow * value for kind, value in seconds.items()},
        samples={"rollout": 288, "explore": 3 * drafts, "score": 288, "train": 192},
        driver_s=[slow * (1.5 if drafts else 0.5)] * 3,
        beside_s=[slow] * 2 if drafts else [],
    )


def test_a_slow_core_changes_no_cost():
    curves = [made([0.0]), made([0.0]), made([0.0], slow=1.5)]
    assert costs_of(curves[2:], curves, curves) == costs_of(curves[:1], curves, curves) == COSTS


def test_few_dear_rollouts_change_the_costs_of_no_arm_alone():
    """An arm that trains on drafts rolls out a few at a time, each of which takes longer."""
    plain, drafts = made([0.0], drafts=0), made([0.0])
    drafts.rollouts, drafts.samples["rollout"], drafts.seconds["rollout"] = [1] * 3, 3, 4.5
    costs = [costs_of([curve], [plain, drafts], [plain, drafts]) for curve in (plain, drafts)]
    assert costs[0].rollout == costs[1].rollout == pytest.approx((216 + 4.5) / (288 + 3))
    assert (costs[1].draft, costs[1].train, costs[1].score) == (0.5, 0.5, 0.25)


def test_planning_beside_training_is_a_share_of_the_driver_s_time():
    before = made([0.0])
    before.beside_s = []
    assert costs_of([before], [before], [before]) == replace(COSTS, driver=1.5, planning=0.0)
    assert costs_of([before, made([0.0])], [before], [before]) == COSTS, "of the curves that noted it"


def arm(name: str, *curves: Curve, timing: DraftTiming = DraftTiming.NEVER) -> Arm:
    costs = WITHOUT_DRAFTS if timing is DraftTiming.NEVER else COSTS
    return Arm(name, dict(enumerate(curves)), costs, timing, "exact", 1)


RISING = [0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3]
QUICK = [0.1, 0.2, 0.3, 0.4, 0.5]


def test_targets_are_shares_of_the_best_gain_without_exploration():
    # The best running mean is .2 above the start, also where the curve falls after it, or begins higher.
    plain = arm("plain", made([*RISING, 0.1]), made([value + 0.05 for value in RISING]))
    assert targets_of(plain) == pytest.approx({25: 0.05, 50: 0.1, 75: 0.15, 100: 0.2})
    assert plain.base() == pytest.approx(0.125)


def test_a_ratio_is_of_medians_and_counts_what_never_gets_there_against_the_faster():
    slow, fast = arm("plain", *[made(RISING)] * 3), arm("stale", *[made(QUICK)] * 3)
    # Running means: the slow one has .1 more at 16 (its middle), the fast one at 4.
    found = ratio(Way(slow, 2.0), Way(fast, 1.0), 0.1 - 1e-9)
    assert (found["low"], found["median"], found["high"]) == (8.0, 8.0, 8.0)
    assert (found["unreached"], found["run_seeds"]) == ({"slow": 0, "fast": 0}, 3)
    never = ratio(Way(slow, 1.0), Way(fast, 1.0), 0.35)
    assert never["unreached"] == {"slow": 3, "fast": 3}
    assert (never["low"], never["median"], never["high"]) == (0.0, 0.0, 0.0)
    # Of the slower one alone: as if it got there at its end, 32; the fast one has .25 more at 10.
    assert ratio(Way(slow, 1.0), Way(fast, 1.0), 0.25)["median"] == pytest.approx(32 / 10, abs=1e-3)


def test_the_interval_is_a_bootstrap_over_the_run_seeds():
    # Three run seeds at 4, 8 and 12 iterations, against 16 of each: medians of draws are 4 and 12 with 7/27.
    curves = [
        made([0.1, 0.4, 0.4, 0.4]),
        made([0.1, 0.1, 0.4, 0.4, 0.4]),
        made([0.1, 0.1, 0.1, 0.4, 0.4, 0.4]),
    ]
    fast, slow = arm("stale", *curves), arm("plain", *[made([0.1, 0.1, 0.1, 0.1, 0.4, 0.4, 0.4])] * 3)
    at = [round(value or 0) for value in fast.reached(0.2, 4, [0, 1, 2])]
    assert at == [4, 8, 12]
    found = ratio(Way(slow, 1.0), Way(fast, 1.0), 0.2)
    assert (found["low"], found["median"], found["high"]) == pytest.approx((16 / 12, 2, 4), abs=1e-3)
    # Drawn together: a run seed that is hard for both is no difference.
    same = ratio(Way(fast, 1.0), Way(fast, 1.0), 0.2)
    assert (same["low"], same["median"], same["high"]) == (1.0, 1.0, 1.0)


def test_arms_are_compared_at_common_run_seeds_and_evaluations():
    rising = [0.1, 0.1, 0.2, 0.2, 0.2, 0.4, 0.4, 0.4, 0.4]
    slow = Arm("plain", {0: made(rising), 1: made([0.1] * 9)}, WITHOUT_DRAFTS, DraftTiming.NEVER, "exact", 1)
    often = [value for value in rising for _ in range(2)][:-1]
    fast = Arm(
        "stale", {0: made(often, every=2), 2: made(QUICK, every=2)}, COSTS, DraftTiming.NEVER, "exact", 1
    )
    found = ratio(Way(slow, 1.0), Way(fast, 1.0), 0.15)
    assert (found["run_seeds"], found["median"]) == (1, 1.0), "the same values every four iterations"


def test_gains_at_the_time_at_which_the_first_arm_ends():
    plain = arm("plain", *[made(RISING, drafts=0)] * 4)
    stale = arm("stale", *[made(QUICK)] * 3, made(RISING[:5]), timing=DraftTiming.TRAINING_WINDOW)
    found = gains_at_equal_time(plain, [stale], MIXED)
    # An iteration takes as long in both; the first to end has 16. Running means there: .2 without and, at the
    # last place 12, .4 and .167 with exploration.
    assert found["time_s"] == pytest.approx(16 * plain.iteration_s(MIXED), abs=1e-3)
    assert found["plain"]["interquartile_mean"] == pytest.approx(0.1)
    assert found["stale"]["all"] == pytest.approx([0.3, 0.3, 0.3, 0.0667])
    assert found["stale"]["interquartile_mean"] == pytest.approx(0.3)
    assert found["stale"]["probability_of_improvement"] == 0.75
    assert found["plain"]["probability_of_improvement"] == 0.5


def test_the_summary_of_hand_made_curves():
    curves: dict[tuple[str, int], Curve] = {}
    for seed in range(3):
        curves["plain", seed] = made(RISING, drafts=0)
        curves["plain_nft", seed] = made(RISING, trained_s=192.0, drafts=0)
        curves["stale_grpo", seed] = made([0.1, 0.1, *QUICK])
        curves["off_policy_grpo", seed] = made(QUICK)
    figures: dict[str, Any] = summarise(
        "shapes", curves, {arm: arm_config("shapes", arm, 0) for arm, _ in curves}
    )
    assert (figures["run_seeds"], figures["base"], figures["target"]) == (3, 0.1, 0.3)
    del curves["off_policy_grpo", 0]
    configs = {arm: arm_config("shapes", arm, 0) for arm, _ in curves}
    assert summarise("shapes", curves, configs)["run_seeds"] == 2
    assert summarise("shapes", curves, configs, ["off_policy_grpo"])["run_seeds"] == 3
    explored = figures["exploration"]
    assert set(explored) == {"grpo"}, "no arm explores with DiffusionNFT"
    assert explored["grpo"]["best"] == "off_policy_grpo"
    # .25 at 22 without, and at 6 with exploration, whose drafts are hidden.
    assert explored["grpo"]["iteration_ratio_75"]["median"] == pytest.approx(22 / 6, abs=1e-3)
    assert explored["grpo"]["time_ratio_75"] == explored["grpo"]["iteration_ratio_75"]
    assert explored["grpo"]["dollar_ratio_75"] == explored["grpo"]["iteration_ratio_75"]
    assert set(explored["grpo"]["time_ratio_75_by_arm"]) == {"stale_grpo", "off_policy_grpo"}
    # With all devices training, an iteration without exploration is shorter.
    assert (
        figures["all_train"]["grpo"]["time_ratio_75"]["median"] < explored["grpo"]["time_ratio_75"]["median"]
    )
    best = figures["best_against_all_on_demand"]
    assert best["best"] == "off_policy_grpo"
    # Twelve devices at $6.88, against four of them and eight at $2.84.
    by_hand = figures["all_train"]["grpo"]["time_ratio_75"]["median"] * 12 * 6.88 / (4 * 6.88 + 8 * 2.84)
    assert best["dollar_ratio_75"]["median"] == pytest.approx(by_hand, rel=1e-3)
    assert figures["arms"]["plain"]["iterations_to_target"] == {"median": 28.0, "all": [28.0] * 3}
    assert figures["arms"]["plain"]["grain_ratio"] == [1.5] * 3
    assert figures["arms"]["plain"]["trained"] == 64


@pytest.mark.parametrize("task", TASKS)
def test_every_arm_trains_on_the_same_batch(task):
    """But the larger one, which trains on as many images as stale exploration makes in all."""
    sizes = {}
    for name in ARMS:
        algorithm = arm_config(task, name, 0).algorithm
        sizes[name] = algorithm.prompts_per_iteration * algorithm.group_size
    larger = sizes.pop("larger_batch")
    assert set(sizes.values()) == {128}
    assert larger == 128 + arm_config(task, "stale", 0).exploration.drafts


@pytest.mark.parametrize("task", TASKS)
def test_arms_of_an_objective_learn_at_the_same_rate(task):
    rates: dict[str, set[float]] = {}
    for name in ARMS:
        config = arm_config(task, name, 0)
        rates.setdefault(config.algorithm.objective, set()).add(config.optimizer.learning_rate)
    assert {objective: len(found) for objective, found in rates.items()} == {"grpo": 1, "nft": 1}


def test_a_task_is_learned_from_its_signal_alone():
    """Without the guards of its preset, in every arm."""
    for task, wanted in TASKS.items():
        configs = [arm_config(task, name, 0) for name in ARMS]
        rewards = {(config.reward.scorer, config.reward.signal) for config in configs}
        assert rewards == {(wanted.scorer, wanted.signal)}
        assert {config.algorithm.kl_weight for config in configs} == {0.0}
    assert {task.signal for task in TASKS.values()} == {"exact", "graded"}


def test_a_cell_of_the_map():
    plain, stale = made([0.1, 0.1, 0.1, 0.2, 0.3]), made([0.1, 0.2, 0.3, 0.4, 0.5])
    for curve in (plain, stale):
        curve.dropped = [1, 2]
    cell = cell_of(0.15, "exact", plain, stale)
    # plain ends at .2 at place 12; stale's first running mean, at place 4, is there already.
    assert (cell["plain_end"], cell["stale_end"], cell["gain"]) == (0.2, 0.4, 0.2)
    assert cell["speedup"] == 3
    assert cell_of(0.15, "exact", stale, plain)["speedup"] is None, "plain's way never reaches it"
