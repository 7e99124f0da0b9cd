"""Advantage-weighted matching: its ratio and loss by hand, its gradients row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from gpu_runtime.learning.objectives.awm import matching_log_prob
from gpu_runtime.learning.objectives.base import policy_loss
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP
from gpu_runtime.learning.objectives.protocol import TrainingSample
from storage.config.run_config import RunConfig
from tests.tiny_run import (
    TinyRun,
    assert_same_gradients,
    mean_gradients,
    noised_row,
    of_update,
    tiny_config,
    train_and_catch_gradients,
)

TIMES = 3


def config(updates: int = 1, mode: str = "full", shared: bool = True, clip_range: float = 1.0) -> RunConfig:
    options = {"times": TIMES, "shared": shared, "clip_range": clip_range}
    return tiny_config(
        adaptation={"mode": mode},
        algorithm={"objective": "awm", "options": options, "updates_per_iteration": updates},
        optimizer={"learning_rate": 1e-2},
    )


@pytest.mark.parametrize(
    ("velocity", "share", "expected", "slope"),
    [
        # u = 1, v_old = 2. At v = 2 the ratio is 1 and the gradient A * 2 (v - u), that of A |v - u|^2.
        (2.0, 0.4, -0.4, 0.4 * 2),
        (2.0, -0.4, 0.4, -0.4 * 2),
        # v = 1.5: log r = 1 - 0.25, r = 2.117, clipped to 2 where that is the smaller gain.
        (1.5, 0.4, -0.8, 0.0),
        (1.5, -0.4, 0.4 * math.exp(0.75), -0.4 * math.exp(0.75)),
    ],
)
def test_the_loss_of_one_number_by_hand(velocity: float, share: float, expected: float, slope: float) -> None:
    v = torch.full((1, 1, 1), velocity, requires_grad=True)
    target, old = torch.ones(1, 1, 1), matching_log_prob(torch.full((1, 1, 1), 2.0), torch.ones(1, 1, 1))
    loss = policy_loss(matching_log_prob(v, target), old, torch.tensor([share]), 1.0).loss_R
    loss.sum().backward()
    assert v.grad is not None
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)
    assert float(v.grad) == pytest.approx(slope, abs=1e-6)


def row_losses(
    run: TinyRun, chosen: list[TrainingSample], old: TinyRun, settings: RunConfig
) -> Iterator[torch.Tensor]:
    """Each row alone in float64, from the definition."""
    options = settings.algorithm.options
    for sample in chosen:
        share = max(-1.0, min(1.0, sample.advantage / ADVANTAGE_CLIP))
        for place in range(TIMES):
            row = noised_row(run, sample, place, TIMES, options["shared"])
            asked = (row.latents_BSC, row.sigma_B, row.prompt)
            error = ((run.model.velocity(*asked).double() - row.target_BSC) ** 2).mean()
            with torch.no_grad():
                old_error = ((old.model.velocity(*asked).double() - row.target_BSC) ** 2).mean()
            ratio = torch.exp(old_error - error)
            bound = ratio.clamp(1 - options["clip_range"], 1 + options["clip_range"])
            yield torch.maximum(-share * ratio, -share * bound)


@pytest.mark.parametrize("clip_range", [0.01, 1.0])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_gradients_of_both_updates_are_those_of_their_rows(
    mode: str, shared: bool, clip_range: float
) -> None:
    settings, half = config(2, mode, shared, clip_range), config(1, mode, shared, clip_range)
    run, first, untouched = TinyRun(settings), TinyRun(half), TinyRun(half)
    samples = run.rollout()
    found = train_and_catch_gradients(run, samples)
    at_once, later = of_update(samples, 0, 2), of_update(samples, 1, 2)
    expected = mean_gradients(untouched, row_losses(untouched, at_once, untouched, half))
    assert_same_gradients(found[0], expected)
    first.trainer.train(at_once)
    assert_same_gradients(found[1], mean_gradients(first, row_losses(first, later, untouched, half)))


def test_the_ratio_of_the_first_update_is_exactly_one_and_of_a_later_one_is_not() -> None:
    one, two = TinyRun(config(1)), TinyRun(config(2))
    report = one.trainer.train(one.rollout())
    assert (report.ratio_deviation, report.ratio_mean, report.clip_share) == (0.0, 1.0, 0.0)
    assert two.trainer.train(two.rollout()).ratio_mean != 1.0


def test_a_clip_range_that_later_updates_leave_is_counted() -> None:
    run = TinyRun(config(2, clip_range=1e-6))
    assert run.trainer.train(run.rollout()).clip_share > 0
