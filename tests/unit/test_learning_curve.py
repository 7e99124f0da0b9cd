"""How the exploration benchmark reads its curves: values worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.allocation_share import captured, captured_by
from benchmarks.bandit_gain import pooled
from benchmarks.exploration import ARMS, PRESETS, arm_config
from benchmarks.exploration_map import cell_of
from benchmarks.exploration_summary import bandit_gain, end_of, reached_at, slowness_of, summarise
from benchmarks.learning_curve import Curve, ModelledFleet
from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.registry import STRATEGIES


def test_a_target_is_reached_where_the_running_mean_reaches_it():
    iterations, values = [0, 4, 8, 12, 16], [0.1, 0.1, 0.4, 0.4, 0.7]
    # Running means of three: 0.2 at 4, 0.3 at 8, 0.5 at 12.
    assert reached_at(iterations, values, 0.3) == pytest.approx(8)
    assert reached_at(iterations, values, 0.4) == pytest.approx(10)
    assert reached_at(iterations, values, 0.15) == pytest.approx(4)
    assert reached_at(iterations, values, 0.6) is None


def test_the_end_is_the_mean_of_the_last_three():
    assert end_of([0.0, 0.0, 0.3, 0.6, 0.9]) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("strategy", "drafts", "seconds"),
    [
        # Rollout 12 over 12 devices, scoring 6 over 6 scorers, training 8 over 4 reserved ones.
        ("plain", 0, 1 + 1 + 2),
        # 36 s of exploration, 12 of them scoring of twice as many images: 24 over 8 spot devices outlast
        # training by a second.
        ("stale", 256, 1 + 1 + 3),
        # Over all 12 devices, as long as scoring takes over 6.
        ("fresh", 256, 2 + 1 + 1 + 2),
        # 24 s of scoring over 6 scorers take longer than 12 s of drawing over 8.
        ("stale", 512, 1 + 1 + 4),
    ],
)
def test_the_critical_path(strategy, drafts, seconds):
    curve = Curve(
        rollout_s=[12.0], score_s=[6.0], train_s=[8.0], explore_s=[36.0], drafts=[drafts], rollouts=[128]
    )
    assert ModelledFleet(4, 8, 6).critical_path_s(curve, STRATEGIES.find(strategy).timing) == pytest.approx(
        seconds
    )


@pytest.mark.parametrize("task", PRESETS)
def test_every_arm_trains_on_the_same_batch(task):
    """But the larger one, which trains on as many images as stale exploration makes in all."""
    sizes = {}
    for arm in ARMS:
        algorithm = arm_config(task, arm, 0).algorithm
        sizes[arm] = algorithm.prompts_per_iteration * algorithm.group_size
    larger = sizes.pop("larger_batch")
    assert set(sizes.values()) == {128}
    assert larger == 128 + arm_config(task, "stale", 0).exploration.drafts


def test_a_rising_curve_reaches_its_own_end():
    rng = random.Random(0)
    for _ in range(200):
        values = [step / 10 + rng.random() * 0.05 for step in range(7)]
        iterations = list(range(0, 28, 4))
        assert reached_at(iterations, values, end_of(values)) == pytest.approx(20)


def tables(*pairs):
    return Curve(found=[{"0.25": pair, "0.5": (1.0, 1.0)} for pair in pairs])


def test_the_bandit_s_gain_counts_a_run_seed_as_one_observation():
    # Of run seed 0 (.9 + .7 + .8) / 3 - (.6 + .6 + .6) / 3 = .2, of 1 .4: mean .3, standard error .1, and
    # Student's t of one degree of freedom is 12.706.
    gains = bandit_gain(
        {
            ("stale", 0): tables((0.9, 0.6), (0.7, 0.6)),
            ("stale_grpo", 0): tables((0.8, 0.6)),
            ("stale", 1): tables((0.8, 0.4)),
            ("plain", 2): tables(),
        }
    )
    gain = gains["0.25"]
    assert (gain["bandit"], gain["uniform"], gain["gain"]) == (0.8, 0.5, 0.3)
    assert (gain["run_seeds"], gain["tables"]) == (2, 4)
    assert gain["low"] == pytest.approx(0.3 - 1.2706, abs=1e-3)
    assert gain["high"] == pytest.approx(0.3 + 1.2706, abs=1e-3)
    assert gains["0.5"]["gain"] == gains["0.5"]["low"] == 0
    assert bandit_gain({}) == {}


def test_the_gain_over_both_tasks_has_a_run_seed_of_a_task_as_one_observation():
    figures = pooled({"ocr": {"0.5": {"gains": [0.1, 0.3]}}, "shapes": {"0.5": {"gains": [0.2], "low": 1}}})
    # Deviation 0.1 of three, Student's quantile 4.303: half an interval is 0.248.
    assert figures == {"0.5": {"gain": 0.2, "low": -0.0484, "high": 0.4484, "gains": [0.1, 0.3, 0.2]}}


def made(exact, every, seconds):
    count = every * (len(exact) - 1)
    return Curve(
        iterations=list(range(0, count + 1, every)),
        score=exact,
        exact=exact,
        rollout_s=[12.0],
        score_s=[12.0],
        train_s=[seconds],
        explore_s=[24.0],
        drafts=[128],
        rollouts=[128],
    )


def test_the_summary_of_hand_made_curves():
    slow = [0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3]
    curves = {("plain", seed): made([v + seed / 100 for v in slow], 4, 8.0) for seed in range(3)}
    curves |= {("stale", seed): made([0.1, 0.3, 0.35, 0.4, 0.5], 4, 8.0) for seed in range(3)}
    curves[("larger_batch", 0)] = made([0.1, 0.1, 0.1, 0.1], 4, 36.0)
    figures = summarise("shapes", curves, {arm: arm_config("shapes", arm, 0) for arm, _ in curves})
    # Ends .30, .31, .32; the plain curve of the median reaches .31 at its last place, 28.
    assert figures["target"] == pytest.approx(0.31)
    assert figures["arms"]["plain"]["iterations_to_target"]["median"] == 28
    # Running means .25 at 4 and .35 at 8: .31 lies at 6.4.
    assert figures["arms"]["stale"]["iterations_to_target"]["all"] == [6.4] * 3
    assert figures["speedup"] == pytest.approx(28 / 6.4, abs=0.01)
    # Rollout 1, scoring 1, training 2; 12 s of drawing over 8 devices fit beside it.
    assert figures["modelled_speedup"] == pytest.approx(28 / 6.4, abs=0.01)
    assert figures["arms"]["larger_batch"]["iterations_to_target"] == {"median": None, "all": [None]}
    assert figures["arms"]["larger_batch"]["seen_until"] == 8
    assert figures["speedup_by"]["over_larger_batch"] == {"iterations": None, "modelled": None}
    assert figures["speedup_by"]["objective"] == {"iterations": None, "modelled": None}


def test_a_slow_core_changes_no_modelled_time():
    usual = made([0.1, 0.3, 0.35, 0.4, 0.5], 4, 8.0)
    slow = replace(
        usual,
        **{part: [1.5 * value for value in getattr(usual, part)] for part in
           ("rollout_s", "score_s", "train_s", "explore_s")},
    )  # fmt: skip
    assert slowness_of([usual, usual, slow]) == [1, 1, 1.5]
    curves = {("plain", 0): usual, ("plain", 1): usual, ("stale", 0): slow}
    figures = summarise("shapes", curves, {arm: arm_config("shapes", arm, 0) for arm in ("plain", "stale")})
    assert figures["modelled_speedup"] == figures["speedup"] == 1


def test_a_cell_of_the_map():
    plain, stale = made([0.1, 0.1, 0.1, 0.2, 0.3], 4, 8.0), made([0.1, 0.2, 0.3, 0.4, 0.5], 4, 8.0)
    for curve in (plain, stale):
        curve.dropped = [1, 2]
    cell = cell_of(0.15, "exact", plain, stale)
    # plain ends at .2 at place 12; stale's first running mean, at place 4, is there already.
    assert (cell["plain_end"], cell["stale_end"], cell["gain"]) == (0.2, 0.4, 0.2)
    assert cell["speedup"] == 3
    assert cell_of(0.15, "exact", stale, plain)["speedup"] is None, "plain's way never reaches it"


def test_the_captured_share_by_hand():
    config = arm_config("shapes", "stale", 0)
    exploration = config.exploration.model_copy(update={"candidates": 4})
    algorithm = config.algorithm.model_copy(update={"prompts_per_iteration": 1, "group_size": 2})
    small = config.model_copy(update={"exploration": exploration, "algorithm": algorithm})
    table = {(7, seed): score for seed, score in enumerate((0.0, 0.0, 1.0, 0.5))}
    table |= {(9, seed): 0.0 for seed in range(4)}
    # The best pair is (0, 1): variance 1/4; the chosen one (.5, 1): 1/16.
    assert captured(small, table, {7: [2, 3]}) == pytest.approx(0.25)
    assert captured(small, table, {7: [0, 2]}) == 1
    # A seed that was never a candidate counts nothing.
    assert captured(small, table, {9: [11, 12]}) == 0
    assert captured(small, {identity: 0.0 for identity in table}, {7: [0, 1]}) is None


@pytest.mark.parametrize("allocation", ["bandit", "uniform"])
def test_an_allocation_with_drafts_for_every_candidate_finds_all_there_is(allocation):
    config = arm_config("shapes", "stale", 0)
    exploration = config.exploration.model_copy(update={"candidates": 6, "drafts": 6 * 48})
    config = config.model_copy(update={"exploration": exploration})
    prompts = list(range(60))
    explorer = SeedExplorer(config, prompts)
    table = {
        (prompt, seed): float((prompt * 7 + seed * 5) % 11 == 0)
        for prompt in explorer.prompts(3)
        for seed in range(6)
    }
    share = captured_by(config, prompts, explorer.state(), 3, allocation, table)
    assert share == pytest.approx(1)
