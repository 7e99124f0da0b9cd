"""GRPO-Guard's normalised ratio and loss by hand, and its gradients row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gpu_runtime.diffusion.noise import Purpose, normal
from gpu_runtime.diffusion.sampler import stream_of
from gpu_runtime.diffusion.sde_step import StepTimes, log_prob, transition
from gpu_runtime.learning.objectives.base import RowLoss
from gpu_runtime.learning.objectives.grpo import guarded_loss
from gpu_runtime.learning.objectives.protocol import TrainingSample
from storage.config.run_config import RunConfig
from tests.tiny_run import (
    TinyRun,
    assert_same_gradients,
    mean_gradients,
    of_update,
    tiny_config,
    train_and_catch_gradients,
)

# One number, sigma 0.5 -> 0.25, a = 0.8: mean = 0.84 x - 0.33 v, deviation 0.4 (test_sde_step). At x = 2 the
# old v = -1 gives 2.01, and noise 1.5 gives x' = 2.61. The new v = -1.1 gives 2.043, so d = 0.033:
#   log r = 0.033 * 1.5 / 0.4 - 0.033^2 / (2 * 0.4^2) = 0.12375 - 0.003403125 = 0.120346875
#   normalised: 0.033 * 1.5 = 0.0495, exp = 1.0507456
TIMES = StepTimes(torch.tensor([0.5]), torch.tensor([0.25]), torch.tensor([0.5]))
NORMALISED = math.exp(0.0495)


def by_hand(velocity: torch.Tensor, advantage: float, clip_range: float) -> RowLoss:
    before, level = torch.full((1, 1, 1), 2.0), torch.tensor([0.8])
    after, old = torch.full((1, 1, 1), 2.61), torch.full((1, 1, 1), 2.01)
    policy = transition("flow", before, velocity, TIMES, level)
    drew = transition("flow", before, torch.full((1, 1, 1), -1.0), TIMES, level)
    log_ratio = log_prob("flow", after, policy) - log_prob("flow", after, drew)
    length, weight = torch.tensor([0.25]), torch.tensor([advantage])
    return guarded_loss(log_ratio, policy.mean_BSC - old, policy.scale_B, length, weight, clip_range)


@pytest.mark.parametrize(
    ("advantage", "clip_range", "expected", "has_gradient"),
    [
        (2.0, 0.1, -2 * NORMALISED / 0.25, True),
        (-2.0, 0.01, 2 * NORMALISED / 0.25, True),
        (2.0, 0.01, -2 * 1.01 / 0.25, False),
    ],
)
def test_loss_and_gradient_of_one_number(
    advantage: float, clip_range: float, expected: float, has_gradient: bool
) -> None:
    velocity = torch.full((1, 1, 1), -1.1, requires_grad=True)
    terms = by_hand(velocity, advantage, clip_range)
    terms.loss_R.sum().backward()
    assert terms.ratio_R is not None and terms.clipped_R is not None and velocity.grad is not None
    assert float(terms.ratio_R) == pytest.approx(math.exp(0.120346875), abs=1e-5)
    assert float(terms.loss_R.detach()) == pytest.approx(expected, abs=1e-4)
    assert bool(terms.clipped_R) is not has_gradient
    # d/dv of -A exp(d * noise) / 0.25, with d' = -0.33.
    slope = -advantage * NORMALISED * 1.5 * -0.33 / 0.25 if has_gradient else 0.0
    assert float(velocity.grad) == pytest.approx(slope, abs=1e-4)


@pytest.mark.parametrize("scale", [0.05, 0.4])
def test_the_normalised_ratio_has_mean_zero_and_a_deviation_without_the_steps(scale: float) -> None:
    rows, moved, wide = 20000, 0.03, 0.9  # rows of one number each
    noise = normal([stream_of(TinyRun(tiny_config()).rollout()[0].request)], Purpose.SDE, 0, (rows,))[
        0
    ].double()
    log_ratio = moved * noise / scale - moved**2 / (2 * scale**2)
    terms = guarded_loss(
        log_ratio,
        torch.full((rows, 1, 1), moved).double(),
        torch.full((rows,), scale).double(),
        torch.ones(rows).double(),
        torch.full((rows,), -1.0).double(),
        wide,
    )
    normalised = terms.loss_R.log()  # the ratio is the loss where the advantage is -1
    assert float(normalised.mean()) == pytest.approx(0, abs=4 * moved / math.sqrt(rows))
    assert float(normalised.std()) == pytest.approx(moved, rel=0.02)


def row_losses(run: TinyRun, chosen: list[TrainingSample], old: TinyRun, clip_range: float):
    """Each row alone in float64, with the old policy's mean from its weights and not from the noise."""
    for sample in chosen:
        trajectory, request = sample.trajectory, sample.request
        for place, step in enumerate(trajectory.step_W.tolist()):
            times = StepTimes.at(run.sampler.schedule(request), torch.tensor([step]))
            sigma, after, guard = (
                times.sigma_B.double(),
                times.sigma_next_B.double(),
                times.sigma_guard_B.double(),
            )
            x, prompt = (
                torch.from_numpy(trajectory.before_WSC[place])[None],
                run.model.encode_prompts([request.prompt]),
            )
            s2 = run.config.sampling.noise_level**2 * sigma / (1 - guard)
            slope = (1 + s2 * (1 - sigma) / (2 * sigma)) * (after - sigma)
            v = run.model.velocity(x, times.sigma_B, prompt).double()
            with torch.no_grad():
                v_old = old.model.velocity(x, times.sigma_B, prompt).double()
            noise = normal([stream_of(request)], Purpose.SDE, step, run.model.latent_shape).double()
            ratio = torch.exp((slope * (v - v_old) * noise).mean())
            bound = ratio.clamp(1 - clip_range, 1 + clip_range)
            yield torch.maximum(-sample.advantage * ratio, -sample.advantage * bound) / (sigma - after)


def config(updates: int, mode: str, clip_range: float = 0.5) -> RunConfig:
    return tiny_config(
        adaptation={"mode": mode},
        algorithm={
            "objective": "grpo-guard",
            "options": {"clip_range": clip_range},
            "updates_per_iteration": updates,
        },
        optimizer={"learning_rate": 1e-2},
    )


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_gradients_of_both_updates_are_those_of_their_rows(mode: str) -> None:
    run, first, untouched = TinyRun(config(2, mode)), TinyRun(config(1, mode)), TinyRun(config(1, mode))
    samples = run.rollout()
    found = train_and_catch_gradients(run, samples)
    at_once, later = of_update(samples, 0, 2), of_update(samples, 1, 2)
    assert_same_gradients(found[0], mean_gradients(untouched, row_losses(untouched, at_once, untouched, 0.5)))
    first.trainer.train(at_once)
    assert_same_gradients(found[1], mean_gradients(first, row_losses(first, later, untouched, 0.5)))


@pytest.mark.parametrize("clip_range", [1e-4, 0.5])
def test_older_samples_are_measured_from_the_weights_that_drew_them(clip_range: float) -> None:
    settings = config(1, "full", clip_range)
    run, untouched, moved = TinyRun(settings), TinyRun(settings), TinyRun(settings)
    samples = [replace(sample, stale=True) for sample in run.rollout()]
    for each in (run, moved):
        each.perturb(0.01)
    expected = mean_gradients(moved, row_losses(moved, samples, untouched, clip_range))
    assert_same_gradients(train_and_catch_gradients(run, samples)[0], expected)
    figures = moved.trainer.train(samples).off_policy
    assert figures is not None
    assert (figures.clip_share > 0) == (clip_range == 1e-4)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_the_ratio_of_the_first_update_is_exactly_one(mode: str) -> None:
    run = TinyRun(config(1, mode, 2e-5))
    report = run.trainer.train(run.rollout())
    assert (report.ratio_deviation, report.ratio_mean, report.clip_share) == (0.0, 1.0, 0.0)
