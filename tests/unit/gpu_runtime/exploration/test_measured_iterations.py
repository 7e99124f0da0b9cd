"""Estimates from the times and scores of a run's iterations, against values worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu_runtime.exploration.measured_iterations import IterationTimes, MeasuredIterations, SeedEvidence
from gpu_runtime.exploration.signal_rate import Contrast, Times, Workload, predict_plain
from gpu_runtime.learning.advantages import Advantages
from gpu_runtime.learning.report import OffPolicyFigures, TrainingReport
from gpu_runtime.runtime import Trained
from tasks.iteration.phases import _times
from tests.tiny_exploration import make_config

PLAIN = IterationTimes(
    rollout_s=32.0, judging_s=0.0, train_s=10.0, draft_wait_s=0.0, whole_s=45.0, trained=20, rollers=2
)
"""A second a sample, two of one device; half a second per trained sample, and three for all else."""


def add(
    measured: MeasuredIterations, number: int, times: IterationTimes = PLAIN, drafts: int | None = None,
    drafters: int = 2, rolled: int = 32, spread: tuple[float, float, float] | None = None, on_spot: int = 0,
    shards: int = 1,
) -> None:  # fmt: skip
    config = make_config().changed(algorithm={"gradient_shards": shards})
    seeds = SeedEvidence(config, {0: [0.0, 1.0]}, spread, 32, rolled, drafts, drafters, on_spot)
    measured.add(number, times, seeds, None)


def of(*iterations: dict[str, Any]) -> Times:
    """The estimate from iterations that follow each other, from the second on."""
    measured = MeasuredIterations()
    for number, one in enumerate(iterations, 2):
        add(measured, number, **one)
    found = measured.times()
    assert found is not None
    return found


def test_an_iteration_gives_the_seconds_of_its_parts():
    assert of({}) == Times(
        rollout_s=1.0, judging_s=0.0, train_s=0.5, draft_s=2.0, rest_s=3.0, drafters=2, overhead_s=0.0
    )
    assert MeasuredIterations().times() is None
    nothing_learned = MeasuredIterations()
    add(nothing_learned, 2, replace(PLAIN, trained=0))
    assert nothing_learned.times() is None


def test_training_with_spot_devices_is_measured_apart():
    faster = replace(PLAIN, train_s=4.0, whole_s=39.0)
    found = of({}, *[{"times": faster, "on_spot": 2}] * 6)
    assert (found.train_s, found.spot_train_s, found.rest_s) == (0.5, 0.2, 3.0)
    assert of({}).spot_train_s is None
    found = of({"times": faster, "on_spot": 2, "shards": 8})
    assert (found.train_s, found.spot_train_s) == (pytest.approx(0.2 * 8 / 3), 0.2), (
        "three shards, then eight"
    )
    early = replace(PLAIN, beside_s=6.4)
    found = of({"times": early}, *[{"times": faster, "on_spot": 2}] * 6)
    assert (found.beside_s, found.spot_beside_s) == (0.2, 0.0), (
        "with all devices none trains before the rollout ends"
    )
    spot_alone = {"times": replace(PLAIN, beside_s=6.4), "on_spot": 2, "shards": 8}
    found = of(spot_alone)
    assert (found.beside_s, found.spot_beside_s) == (pytest.approx(0.2 * 8 / 3), 0.2), (
        "reserved devices take longer"
    )
    long = of({**spot_alone, "times": replace(PLAIN, beside_s=30.0)})
    assert long.beside_s == (PLAIN.rollout_s + PLAIN.judging_s) / 32, (
        "beside, there is no more time than that"
    )


def test_the_usual_iteration_counts_and_the_first_one_only_while_it_is_alone():
    measured = MeasuredIterations()
    for number, rollout_s in enumerate([320.0, 64.0, 32.0, 48.0], 1):
        add(measured, number, replace(PLAIN, rollout_s=rollout_s))
        found = measured.times()
        assert found is not None and found.rollout_s == {1: 10.0, 2: 2.0, 3: 1.5, 4: 1.5}[number]


def test_rollouts_of_mostly_kept_drafts_are_not_informative():
    kept = replace(PLAIN, rollout_s=15.0, judging_s=7.0)
    assert of({}, {"times": kept, "rolled": 15}).rollout_s == 1.0
    found = of({"times": kept, "rolled": 16})
    assert found.rollout_s == 15 / 16
    assert found.judging_s == 7 / 16


def test_a_draft_takes_what_of_the_window_it_had():
    """Ten seconds on two devices, and a wait of five for the last of them."""
    assert of({}, {"drafts": 8}).draft_s == 20 / 8
    waiting = replace(PLAIN, judging_s=2.0, draft_wait_s=5.0, whole_s=PLAIN.whole_s + 7.0)
    waited = of({}, {"drafts": 8, "times": waiting})
    assert (waited.draft_s, waited.rest_s, waited.overhead_s) == (34 / 8, 3.0, 0.0)


def test_drafting_without_a_draft_judged_is_a_lower_bound_and_not_plain():
    longer = replace(PLAIN, whole_s=46.0)
    found = of({}, {"drafts": 0, "times": longer})
    assert (found.draft_s, found.rest_s, found.overhead_s) == (20.0, 3.0, 1.0)
    # A window too short for any draft tells nothing new.
    assert of({}, {"drafts": 0, "times": replace(PLAIN, train_s=0.5)}).draft_s == 2.0
    # Judged ones took 4 s: the median of 4 and 20, and of 4, 4 and 20.
    assert of({"drafts": 5}, {"drafts": 0}).draft_s == 12.0
    assert of({"drafts": 5}, {"drafts": 0}, {"drafts": 5}).draft_s == 4.0


def test_training_beside_the_rollout_counts_too():
    """Of ten seconds two are beside it, however many samples are trained on."""
    found = of({"times": replace(PLAIN, train_s=8.0, beside_s=2.0)})
    assert (found.train_s, found.beside_s) == (0.5, 2 / 32)
    assert found.training_left_s(32, 32) == 14.0
    assert found.training_left_s(32, 16) == 15.0
    assert found.training_left_s(2, 32) == 0.0


def test_publishing_is_no_part_of_what_a_sample_trained_on_takes():
    """Twenty seconds to publish, one a sample, four live of 32: all 32 take 52."""
    seconds = {"rollout": 8.0, "reward": 0.0, "train": 24.0, "explore_wait": 0.0}
    kept = Advantages(np.zeros((8, 4)), np.array([True] + [False] * 7))
    rolled: Any = SimpleNamespace(delivered=[SimpleNamespace(worker="spot-0")] * 32)
    trained = Trained(TrainingReport(1, 0.0, 0.0, 0.0, 0.1, 0.0), kept, 1, beside_s=0.0, left_s=4.0)
    session: Any = SimpleNamespace(seconds=seconds)
    found = of({"times": _times(session, rolled, trained, 32.0)})
    everything = predict_plain(Workload(32, 0), found, Contrast(1.0, 0.5))
    assert everything.iteration_s == pytest.approx(8 + 52)
    seconds["redraft"] = 5.0
    again = of({"times": _times(session, rolled, trained, 32.0)})
    assert again.rest_s == pytest.approx(found.rest_s + 5), "drafts made again are paid for in each iteration"


def test_devices_that_come_and_go_count_where_there_were_any():
    assert of(*({"drafters": number} for number in (2, 0, 4, 0, 0))).drafters == 3
    assert of(*({"drafters": number} for number in (2, 0, 0, 0, 0, 0))).drafters == 0


def test_what_holds_of_a_choice_is_measured_by_its_variance():
    measured = MeasuredIterations()
    assert measured.holds == pytest.approx(0.56) and not measured.rolled_drafts_out
    add(measured, 2, spread=(1.0, 3.0, 2.5))
    # 1.5 of 2 held, and an assumed iteration of as much.
    assert measured.holds == pytest.approx((1.5 + 2 * 0.56) / 4) and measured.rolled_drafts_out


def test_everything_goes_through_a_checkpoint():
    before, after = MeasuredIterations(), MeasuredIterations()
    add(before, 1, spread=(1.0, 3.0, 2.5))
    add(before, 2, drafts=0)
    seeds = SeedEvidence(make_config(), {0: [0.0, 1.0]}, None, 32, 8, 5, 2)
    before.add(3, PLAIN, seeds, OffPolicyFigures(samples=1, ratio_spread=0.1, kl=0.0, clip_share=0.25))
    after.restore(json.loads(json.dumps(before.state())))
    assert after.times() == before.times() and after.scores == before.scores
    assert after.gradient_share == before.gradient_share == 0.75
    assert (after.holds, after.trained_on_drafts) == (before.holds, True)
