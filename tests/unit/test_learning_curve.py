"""How the exploration benchmark reads its curves: values worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.allocation_share import captured, captured_by
from benchmarks.exploration import ARMS, PRESETS, arm_config, bandit_gain, end_of, reached_at
from benchmarks.learning_curve import Curve, ModelledFleet
from gpu_runtime.exploration.explorer import SeedExplorer


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
    assert ModelledFleet(4, 8, 6).critical_path_s(curve, strategy) == pytest.approx(seconds)


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


def curve(bandit, uniform):
    return Curve(found_by_bandit=bandit, found_by_uniform=uniform)


def test_the_bandit_s_gain_counts_a_curve_as_one_observation():
    # Mean differences .2 and .4: mean .3, standard error .1, Student's t of one degree of freedom 12.706.
    gain = bandit_gain([curve([0.9, 0.7], [0.6, 0.6]), curve([0.8], [0.4]), curve([], [])])
    assert gain is not None
    assert (gain["gain"], gain["curves"], gain["tables"]) == (0.3, 2, 3)
    assert gain["low"] == pytest.approx(0.3 - 1.2706, abs=1e-3)
    assert gain["high"] == pytest.approx(0.3 + 1.2706, abs=1e-3)
    assert bandit_gain([]) is None


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
