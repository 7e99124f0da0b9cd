"""How the exploration benchmark reads its curves: values worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.exploration import ARMS, PRESETS, arm_config, end_of, reached_at
from benchmarks.learning_curve import Curve, ModelledFleet


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
    ("strategy", "seconds"),
    [
        # Rollout and scoring 12 + 12 over 12 devices, training 8 over 4 reserved ones.
        ("plain", 2 + 2),
        # Drafts of 24 s over 8 spot devices outlast training by a second.
        ("stale", 2 + 3),
        ("fresh", 2 + 2 + 2),
    ],
)
def test_the_critical_path(strategy, seconds):
    curve = Curve(rollout_s=[12.0], score_s=[12.0], train_s=[8.0], explore_s=[24.0])
    assert ModelledFleet(4, 8).critical_path_s(curve, strategy) == pytest.approx(seconds)


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
