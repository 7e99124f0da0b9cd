"""DiffusionNFT's loss by hand, its gradients row by row, and what the objective owes to identity."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu_runtime.diffusion.noise import NoiseStream, Purpose, uniform
from gpu_runtime.learning.objectives.nft import nft_loss
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP, NftOptions
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.registry import OBJECTIVES
from gpu_runtime.learning.weights import weights_digest
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, TrainingError
from tests.tiny_run import (
    Gradients,
    TinyRun,
    assert_same_gradients,
    mean_gradients,
    noised_row,
    of_update,
    tiny_config,
    train_and_catch_gradients,
)

BETA, TIMES = 0.25, 3


def config(
    updates: int = 1, mode: str = "full", optimizer: dict[str, Any] | None = None, **algorithm: object
) -> RunConfig:
    settings = {
        "objective": "nft",
        "options": {"beta": BETA, "times": TIMES},
        "updates_per_iteration": updates,
    }
    return tiny_config(
        adaptation={"mode": mode}, algorithm={**settings, **algorithm}, optimizer=optimizer or {}
    )


def test_without_noise_the_weights_are_checked_by_a_step_of_the_ode() -> None:
    run = TinyRun(config().model_copy(update={"sampling": tiny_config(sampling={"sde": "none"}).sampling}))
    samples = run.rollout()
    assert run.trainer.train(samples).ratio_deviation == 0.0
    run.perturb(1e-3)
    with pytest.raises(TrainingError):
        run.trainer.train(samples)


def test_without_noise_only_an_objective_without_likelihood_can_train() -> None:
    without = tiny_config(sampling={"sde": "none"})
    with pytest.raises(ConfigurationError, match="no likelihood to train on"):
        OBJECTIVES.stored(without)
    OBJECTIVES.stored(without.changed(algorithm={"objective": "nft"}))


def scalar(value: float) -> torch.Tensor:
    return torch.tensor([[[value]]])


def test_the_loss_of_one_number_by_hand() -> None:
    # v+ = .75 * 2 + .25 * 4 = 2.5, v- = 1.25 * 2 - .25 * 4 = 1.5; u = 1:
    # (.8 * 1.5^2 + .2 * .5^2) / .25 = (1.8 + .05) / .25
    loss = nft_loss(scalar(4), scalar(2), scalar(1), torch.tensor([0.8]), BETA)
    assert loss.item() == pytest.approx(7.4, abs=1e-6)


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("optimality", [0.0, 0.5, 0.9])
def test_at_the_old_policy_the_gradient_does_not_depend_on_beta(beta: float, optimality: float) -> None:
    velocity = scalar(2.0).requires_grad_()
    nft_loss(velocity, scalar(2), scalar(-1), torch.tensor([optimality]), beta).sum().backward()
    assert velocity.grad is not None
    assert velocity.grad.item() == pytest.approx(2 * (2 * optimality - 1) * 3, abs=1e-5)


def test_the_minimum_lies_where_the_docstring_says() -> None:
    old, target, optimality = 2.0, -1.0, 0.8
    velocity = scalar(old + (2 * optimality - 1) / BETA * (target - old)).requires_grad_()
    nft_loss(velocity, scalar(old), scalar(target), torch.tensor([optimality]), BETA).sum().backward()
    assert velocity.grad is not None
    assert velocity.grad.item() == pytest.approx(0, abs=1e-5)


def test_uniform_draws_lie_inside_and_follow_from_their_identity() -> None:
    streams = [NoiseStream(1, 2, 3, seed) for seed in range(4096)]
    drawn = uniform(streams, Purpose.TRAIN_TIME, 2)
    assert drawn.dtype == torch.float64
    assert float(drawn.min()) > 0
    assert float(drawn.max()) < 1
    # Mean and variance of 4096 draws: standard errors .0045 and .0012.
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(drawn.var()) == pytest.approx(1 / 12, abs=0.006)
    assert torch.equal(uniform(streams[7:9], Purpose.TRAIN_TIME, 2), drawn[7:9])
    assert not torch.equal(uniform(streams, Purpose.TRAIN_TIME, 1), drawn)


def row_loss(
    run: TinyRun, sample: TrainingSample, place: int, settings: RunConfig, old: TinyRun | None = None
) -> torch.Tensor:
    """One row alone, from the definition; the old policy is `old`'s, or the policy itself."""
    shared = settings.algorithm.options.get("shared", NftOptions().shared)
    row = noised_row(run, sample, place, TIMES, shared)
    asked = (row.latents_BSC, row.sigma_B, row.prompt)
    velocity = run.policy.model.velocity(*asked)
    before = velocity.detach() if old is None else old.model.velocity(*asked).detach()
    good = 0.5 + 0.5 * max(-1.0, min(1.0, sample.advantage / ADVANTAGE_CLIP))
    return nft_loss(velocity, before, row.target_BSC, torch.tensor([good]), BETA)


def gradients_row_by_row(
    run: TinyRun, chosen: list[TrainingSample], settings: RunConfig, old: TinyRun | None = None
) -> Gradients:
    rows = [(sample, place) for sample in chosen for place in range(TIMES)]
    return mean_gradients(run, (row_loss(run, *row, settings, old) for row in rows))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_the_first_update_s_gradients_are_those_of_its_rows(updates: int, mode: str, shared: bool) -> None:
    settings = config(updates, mode, options={"beta": BETA, "times": TIMES, "shared": shared})
    run = TinyRun(settings)
    samples = run.rollout()
    expected = gradients_row_by_row(run, of_update(samples, 0, updates), settings)
    assert_same_gradients(train_and_catch_gradients(run, samples)[0], expected)


def test_the_second_update_is_measured_from_the_policy_before_the_first() -> None:
    # A large step, so that the old policy's part of the second gradient is not small.
    settings = config(updates=2, optimizer={"learning_rate": 1e-2})
    first, run, untouched = TinyRun(settings), TinyRun(settings), TinyRun(settings)
    samples = run.rollout()
    half = config(updates=1, optimizer={"learning_rate": 1e-2})
    first = TinyRun(half)
    first.trainer.train(of_update(samples, 0, 2))
    expected = gradients_row_by_row(first, of_update(samples, 1, 2), settings, untouched)
    found = train_and_catch_gradients(run, samples)[1]
    assert_same_gradients(found, expected)
    forgotten = gradients_row_by_row(first, of_update(samples, 1, 2), settings)
    with pytest.raises(AssertionError):
        assert_same_gradients(found, forgotten)


def test_an_iteration_that_was_refused_leaves_nothing_behind() -> None:
    run, other = TinyRun(config(updates=2)), TinyRun(config(updates=2))
    samples = run.rollout()
    run.perturb()
    with pytest.raises(TrainingError):
        run.trainer.train(samples)
    run.policy.load(other.policy.state())
    # One prompt makes one update: the policy itself is the old one.
    last = [sample for sample in samples if sample.request.prompt_id == 2]
    for each in (run, other):
        assert each.trainer.train(last).training_steps == 1
    assert weights_digest(run.policy.state()) == weights_digest(other.policy.state())


def test_a_step_brings_good_images_nearer_and_takes_bad_ones_away() -> None:
    settings = config(updates=1)
    run = TinyRun(settings)
    samples = run.rollout()
    good = [sample for sample in samples if sample.advantage > 0]
    bad = [sample for sample in samples if sample.advantage < 0]

    def error(chosen: list[TrainingSample]) -> float:
        # At v_old = v the loss is |v - u|^2 / beta whatever the optimality is.
        with torch.no_grad():
            rows = [row_loss(run, sample, place, settings) for sample in chosen for place in range(TIMES)]
        return float(torch.cat(rows).mean())

    before = error(good) - error(bad)
    run.trainer.train(samples)
    assert error(good) - error(bad) < before


def test_a_distance_from_the_reference_is_weighed_in() -> None:
    free, held = TinyRun(config(updates=2)), TinyRun(config(updates=2, kl_weight=0.5))
    assert free.trainer.train(free.rollout()).kl == 0
    assert held.trainer.train(held.rollout()).kl > 0
    assert weights_digest(free.policy.state()) != weights_digest(held.policy.state())
