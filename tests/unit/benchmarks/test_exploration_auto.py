"""The benchmark of `auto`: times of a fleet and ratios by hand, from planted curves; how it decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.exploration.exploration_auto import (
    CASES,
    ITERATIONS,
    Case,
    CaseName,
    PlacedAuto,
    case_figures,
    curve_config,
    curves_wanted,
    elapsed_s,
    summarise,
)
from benchmarks.exploration.learning_curve import Curve
from benchmarks.exploration.modelled_fleet import Costs, Fleet, times_with_window
from gpu_runtime.exploration.measured_iterations import IterationTimes, SeedEvidence
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.exploration.strategies.strategy import TrainingEvidence

COSTS = Costs(rollout=2.0, draft=2.0, score=1.0, train=3.0, driver=0.5, planning=0.0)
FLEET = Fleet(reserved=2, spot=2, trainers=2, scorers=1)


def test_phases_of_an_iteration_add_up():
    """Eight rollouts take 4 s on four devices and are judged after 8 s; training takes 12 s on two, and its
    first half begins after 4 s. Four drafts are made after 8 s, and judged after 12 s; forty after 48 s."""
    found = times_with_window(8, 4, 8, COSTS, FLEET, updates=2)
    assert (found.rollout_s, found.judging_s, found.beside_s) == (4.0, 4.0, 4.0)
    assert (found.train_s, found.draft_wait_s, found.whole_s) == (8.0, 0.0, 16.5)
    longer = times_with_window(8, 40, 8, COSTS, FLEET, updates=2)
    assert (longer.train_s, longer.draft_wait_s, longer.whole_s) == (8.0, 32.0, 48.5)
    planned = replace(COSTS, planning=1.0)
    assert times_with_window(8, 0, 8, planned, FLEET, 2) == times_with_window(8, 0, 8, COSTS, FLEET, 2)


def test_training_takes_as_long_as_the_device_with_most_shards():
    """Sixteen shards: four devices have four each, six three, twelve two; each is asked for its sums."""
    for trainers, speed in ((1, 1), (4, 4), (6, 16 / 3), (12, 8), (16, 16)):
        assert Fleet(4, 12, trainers, shards=16).training_speed == pytest.approx(speed)
    assert replace(FLEET, shards=0).training_speed == 2
    three = Fleet(reserved=2, spot=2, trainers=3, scorers=1, shards=4)
    found = times_with_window(8, 0, 8, replace(COSTS, joining=0.25), three, updates=2)
    # 8 samples take 24 s of one device, and 12 s of the one with two shards.
    assert (found.train_s, found.beside_s, found.whole_s) == (8.75, 4.0, 17.25)


def curve_of(rise: float, trained: int, drafts: int, notes: tuple[str, ...] = ()) -> Curve:
    """A curve whose score rises by so much an iteration."""
    steps = range(ITERATIONS + 1)
    return Curve(
        iterations=[*steps],
        score=[0.1 + rise * step for step in steps],
        exact=[0.0 for _ in steps],
        rollouts=[trained] * ITERATIONS,
        drafts=[drafts] * ITERATIONS,
        trained=[trained] * ITERATIONS,
        driver_s=[0.5] * ITERATIONS,
        notes=[*notes],
    )


@pytest.fixture
def costs_by_hand(monkeypatch):
    monkeypatch.setitem(CASES, "graded texts", Case("ocr-graded", FLEET, COSTS))


def test_a_ratio_is_of_modelled_seconds_to_plain_s_gain(costs_by_hand):
    """Three quarters of plain's gain are 15 iterations of plain, and 7.5 of what rises twice as fast. With 8
    samples an iteration of four updates takes 8 + 12 - 3 + .5 s, or 11.5 s with 4 samples (8 - .75 s)."""
    plain = curve_of(0.01, trained=8, drafts=0)
    slow = times_with_window(8, 0, 8, COSTS, FLEET, 4).whole_s
    fast = times_with_window(4, 0, 4, COSTS, FLEET, 4).whole_s
    notes = ("iteration 2: still plain from here on: no", "the look took 0.1 s", "the look took 0.3 s")
    curves = {
        "plain": {0: plain, 1: plain},
        "stale": {0: curve_of(0.0, 8, 0), 1: curve_of(0.0, 8, 0)},
        "off_policy": {0: curve_of(0.02, 8, 0), 1: curve_of(0.02, 8, 0)},
        "auto": {0: curve_of(0.02, 4, 0, notes), 1: curve_of(0.02, 4, 0), 2: plain},
    }
    found = case_figures("graded texts", curves)
    assert (found["run_seeds"], found["best_fixed"]) == (2, "off_policy")
    assert found["target_gain"] == pytest.approx(0.75 * 0.2, abs=0.011)
    assert found["against_plain"]["median"] == pytest.approx(2 * slow / fast, rel=0.05)
    assert found["against_best_fixed"]["median"] == pytest.approx(slow / fast, rel=0.01)
    assert found["seconds_to_target"]["stale"] is None
    assert found["look_share"] == pytest.approx(0.4 / 20)
    assert found["decisions"] == [["iteration 2: still plain from here on: no"], []]
    total = summarise({"graded texts": found, "another": {**found, "look_share": 0.5}})
    assert (total["tasks"], total["look_share"], total["wholly_below_plain"]) == (2, 0.5, [])


def test_where_spot_devices_may_train_plain_does_and_auto_where_it_notes_so(monkeypatch):
    """With four shards, training takes half of the time on four devices: 6 s of 12."""
    case = Case("ocr-graded", replace(FLEET, shards=4), replace(COSTS, score=0.0))
    monkeypatch.setitem(CASES, "graded texts", case)
    plain = curve_of(0.01, trained=8, drafts=0)
    notes = [f"iteration {number} trained on spot devices, too" for number in range(1, ITERATIONS, 2)]
    auto = replace(plain, notes=notes)
    curves = {
        "plain": {0: plain},
        "stale": {0: curve_of(0.0, 8, 0)},
        "off_policy": {0: curve_of(0.0, 8, 0)},
        "auto": {0: auto},
    }
    found = case_figures("graded texts", curves)
    # 0.5 s, 4 s for the rollout, and the training.
    alone_s, all_s = 16.5, 10.5
    assert found["best_fixed"] == "plain"
    in_turn = all_s / ((alone_s + all_s) / 2)
    assert found["all_train"]["auto_against_better"]["median"] == pytest.approx(in_turn, rel=0.02)
    assert found["all_train"]["against_reserved_alone"]["median"] == pytest.approx(alone_s / all_s, rel=1e-3)
    assert found["all_train"]["by_mean_curves"] == found["against_best_fixed"]["median"], "of one run seed"
    assert found["all_train"]["spot_trained"] == [10]
    total = summarise({"graded texts": found})
    assert total["all_train"] == found["all_train"]
    found.pop("all_train")
    assert summarise({"graded texts": found})["all_train"] is None


def test_samples_trained_on_follow_from_dropped_groups_where_a_curve_lacks_them(costs_by_hand):
    config = curve_config("graded texts", "plain", 0)
    curve = replace(curve_of(0.0, 120, 0), dropped=[2] * ITERATIONS)
    without = replace(curve, trained=[])
    assert elapsed_s(without, CASES["graded texts"], config) == elapsed_s(
        curve, CASES["graded texts"], config
    )


GRADED = {prompt: [0.1, 0.3, 0.5, 0.7] for prompt in range(32)}
RARE = {prompt: [1.0, 0.0, 0.0, 0.0] if prompt % 4 == 0 else [0.0] * 4 for prompt in range(32)}


@pytest.mark.parametrize(
    ("name", "scores", "decided"),
    [
        ("graded texts", GRADED, "off_policy"),
        ("graded texts, one spot device", GRADED, "plain"),
        ("graded texts, all may train", GRADED, "off_policy"),
        ("exact texts", RARE, "off_policy"),
        ("exact texts, all may train", RARE, "all_train"),
    ],
)
def test_auto_decides_by_the_fleet_of_its_case(name, scores, decided):
    """Beside one drafting device of nine, drafts would be waited for; beside eight they cost nothing.

    Half of the time of training is worth more than drafts of texts that few samples get right."""
    config = curve_config(name, "auto", 0)
    strategy = strategy_of(config.exploration)
    trained = 4 * sum(len(set(group)) > 1 for group in scores.values())
    in_turn = IterationTimes(1.0, 1.0, 1.0, 1.0, 4.0, trained=trained, rollers=1)
    for iteration in (1, 2):
        seeds = SeedEvidence(config, scores, None, 128, 128, None, 1)
        notes = strategy.after_training(iteration, TrainingEvidence(None, dict, in_turn, seeds))
    on_spot = ["trainers"] if "all may train" in name else []  # it begins so, and nothing has changed it yet
    assert [kind for kind, _ in notes] == ["strategy", "look", *on_spot]
    assert strategy.decisions()[2] == decided


def test_fixed_arms_have_the_settings_of_auto():
    for name in CASES:
        auto = curve_config(name, "auto", 3)
        for strategy in ("plain", "stale", "off_policy"):
            fixed = curve_config(name, strategy, 3)
            assert fixed.optimizer == auto.optimizer and fixed.reward == auto.reward
            assert fixed.algorithm.options == auto.algorithm.options
        # Without drafts, `auto` trains on all prompts that it would have explored.
        plain = curve_config(name, "plain", 3)
        assert plain.algorithm.prompts_per_iteration == auto.prompts_explored == 32
        assert isinstance(PlacedAuto(CaseName(case=name)), PlacedAuto)


def test_a_fixed_strategy_has_one_curve_for_all_fleets():
    names = ("exact texts", "exact texts, all may train")
    wanted = curves_wanted(names, seeds=2)
    for strategy in ("plain", "stale", "off_policy"):
        assert wanted[names[0], strategy, 1] == wanted[names[1], strategy, 1]
