"""The denoising step against formulas worked in float64, independently of the code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sde_step import (
    SdeKind,
    StepTimes,
    Transition,
    kl_to_reference,
    log_prob,
    transition,
)

SHAPE = (2, 3)


def times_of(*rows: tuple[float, float, float]) -> StepTimes:
    """Times of (sigma, sigma', guard) rows."""
    sigma, after, guard = torch.tensor(rows, dtype=torch.float32).T
    return StepTimes(sigma, after, guard)


def cell(value: float) -> torch.Tensor:
    """A tensor of shape (1, 1, 1)."""
    return torch.full((1, 1, 1), value)


def pair(first: float, second: float) -> torch.Tensor:
    """Latents of one sample with one token of two channels."""
    return torch.tensor([[[first, second]]])


def flow_by_hand(x, v, sigma, after, guard, a):
    """Mean, s and deviation of Flow-GRPO's SDE step, float64."""
    dt = after - sigma
    s = a * np.sqrt(sigma / (1 - guard))
    mean = x * (1 + s**2 / (2 * sigma) * dt) + v * (1 + s**2 * (1 - sigma) / (2 * sigma)) * dt
    return mean, s, s * np.sqrt(-dt)


def cps_by_hand(x, v, sigma, after, guard, a):
    """Mean, s and deviation of the CPS step, float64."""
    s = after * np.sin(a * np.pi / 2)
    mean = (x - sigma * v) * (1 - after) + (x + (1 - sigma) * v) * np.sqrt(after**2 - s**2)
    return mean, s, s


def test_flow_step_worked_with_literal_numbers() -> None:
    # sigma = 0.5, sigma' = 0.25, a = 0.8: dt = -0.25, s = 0.8 * sqrt(0.5 / 0.5) = 0.8, s^2 = 0.64.
    # factor of x: 1 + 0.64 / (2 * 0.5) * -0.25             = 0.84
    # factor of v: (1 + 0.64 * 0.5 / (2 * 0.5)) * -0.25     = 1.32 * -0.25 = -0.33
    # mean: 0.84 * 2 - 0.33 * -1 = 2.01 and 0.84 * 1 - 0.33 * 2 = 0.18
    # deviation: 0.8 * sqrt(0.25) = 0.4;  x' = 2.01 + 0.4 * 1.5 = 2.61 and 0.18 + 0.4 * -0.5 = -0.02
    policy = transition("flow", pair(2, 1), pair(-1, 2), times_of((0.5, 0.25, 0.5)), torch.tensor([0.8]))
    after = policy.sample(pair(1.5, -0.5))
    torch.testing.assert_close(policy.mean_BSC, pair(2.01, 0.18), atol=1e-6, rtol=0)
    assert float(policy.s_B) == pytest.approx(0.8, abs=1e-6)
    assert float(policy.scale_B) == pytest.approx(0.4, abs=1e-6)
    torch.testing.assert_close(after, pair(2.61, -0.02), atol=1e-6, rtol=0)
    # -(0.6)^2 / (2 * 0.16) = -1.125 and -(0.2)^2 / 0.32 = -0.125, of which the mean is -0.625;
    # -ln 0.4 = 0.9162907319; -ln sqrt(2 pi) = -0.9189385332. Together -0.6276478013.
    assert float(log_prob("flow", after, policy)) == pytest.approx(-0.6276478013, abs=1e-6)


def test_cps_step_worked_with_literal_numbers() -> None:
    # sigma = 0.8, sigma' = 0.5, a = 1/3: s = 0.5 * sin(pi / 6) = 0.25.
    # x0 = 1 + 0.8 * 0.5 = 1.4; x1 = 1 - 0.2 * 0.5 = 0.9; sqrt(0.25 - 0.0625) = 0.4330127019
    # mean = 1.4 * 0.5 + 0.9 * 0.4330127019 = 1.0897114317; x' = mean + 0.25 * 2 = 1.5897114317
    # log p = -(0.5)^2 = -0.25
    policy = transition("cps", cell(1), cell(-0.5), times_of((0.8, 0.5, 0.8)), torch.tensor([1 / 3]))
    after = policy.sample(cell(2))
    assert float(policy.mean_BSC) == pytest.approx(1.0897114317, abs=1e-6)
    assert float(policy.scale_B) == pytest.approx(0.25, abs=1e-6)
    assert float(after) == pytest.approx(1.5897114317, abs=1e-6)
    assert float(log_prob("cps", after, policy)) == pytest.approx(-0.25, abs=1e-6)


@pytest.mark.parametrize("kind", ["flow", "cps"])
@pytest.mark.parametrize(
    ("sigma", "after", "guard", "a"),
    [
        (1.0, 0.9, 0.9, 0.7),
        (1.0, 0.75, 0.75, 0.3),
        (0.9, 0.8, 0.9, 0.7),
        (0.625, 0.5, 0.625, 1.0),
        (0.5, 0.25, 0.5, 0.7),
        (0.3, 0.1, 0.3, 0.9),
    ],
)
def test_step_equals_the_formulas(kind: SdeKind, sigma: float, after: float, guard: float, a: float) -> None:
    x, v, noise = np.random.default_rng(7).standard_normal((3, 1, *SHAPE)).astype(np.float32)
    by_hand = flow_by_hand if kind == "flow" else cps_by_hand
    mean, s, scale = by_hand(x.astype(np.float64), v.astype(np.float64), sigma, after, guard, a)
    reached = mean + scale * noise.astype(np.float64)
    if kind == "flow":
        density = -((reached - mean) ** 2) / (2 * scale**2) - np.log(scale) - 0.5 * np.log(2 * np.pi)
    else:
        density = -((reached - mean) ** 2)

    times = times_of((sigma, after, guard))
    policy = transition(kind, torch.from_numpy(x), torch.from_numpy(v), times, torch.tensor([a]))
    sampled = policy.sample(torch.from_numpy(noise))

    assert np.abs(policy.mean_BSC.numpy() - mean).max() < 1e-6
    assert float(policy.s_B) == pytest.approx(s, abs=1e-6)
    assert float(policy.scale_B) == pytest.approx(scale, abs=1e-6)
    assert np.abs(sampled.numpy() - reached).max() < 1e-6
    assert float(log_prob(kind, sampled, policy)) == pytest.approx(density.mean(), abs=1e-6)


@pytest.mark.parametrize("kind", ["flow", "cps"])
@pytest.mark.parametrize(("sigma", "after"), [(1.0, 0.9), (0.6, 0.5), (0.1, 0.0)])
def test_noise_level_zero_is_the_euler_step(kind: SdeKind, sigma: float, after: float) -> None:
    x, v, noise = torch.randn(3, 1, *SHAPE, generator=torch.Generator().manual_seed(1))
    policy = transition(kind, x, v, times_of((sigma, after, min(sigma, 0.9))), torch.zeros(1))
    torch.testing.assert_close(policy.mean_BSC, x + v * (after - sigma), atol=1e-6, rtol=0)
    assert float(policy.scale_B) == 0
    assert torch.equal(policy.sample(noise), policy.mean_BSC)


def test_cps_keeps_the_noise_of_the_schedule() -> None:
    # For x = noise, v = noise (x0 = 0) the mean carries sqrt(sigma'^2 - s^2) of the old noise.
    policy = transition("cps", cell(0.8), cell(1), times_of((0.8, 0.5, 0.8)), torch.tensor([0.6]))
    assert float(policy.mean_BSC**2 + policy.scale_B**2) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("kind", ["flow", "cps"])
def test_rows_of_a_batch_are_independent(kind: SdeKind) -> None:
    x, v, noise = torch.randn(3, 3, *SHAPE, generator=torch.Generator().manual_seed(2))
    rows = [(1.0, 0.9, 0.9), (0.7, 0.5, 0.7), (0.4, 0.2, 0.4)]
    levels = torch.tensor([0.7, 0.0, 0.4])
    together = transition(kind, x, v, times_of(*rows), levels).sample(noise)
    for row, time in enumerate(rows):
        one = slice(row, row + 1)
        alone = transition(kind, x[one], v[one], times_of(time), levels[one]).sample(noise[one])
        torch.testing.assert_close(together[one], alone, atol=1e-7, rtol=0)


def test_times_of_a_schedule() -> None:
    sigmas = torch.tensor([1.0, 0.75, 0.5, 0.0], dtype=torch.float64)
    times = StepTimes.at(sigmas, torch.tensor([0, 2, 1]))
    assert times.sigma_B.tolist() == [1.0, 0.5, 0.75]
    assert times.sigma_next_B.tolist() == [0.75, 0.0, 0.5]
    assert times.sigma_guard_B.tolist() == [0.75, 0.5, 0.75]
    assert times.sigma_B.dtype == torch.float32


def test_kl_worked_with_literal_numbers() -> None:
    # mean((mu - mu_ref)^2) / (2 s^2): (0.1^2 + 0.3^2) / 2 = 0.05; 0.05 / (2 * 0.64) = 0.0390625
    s = torch.tensor([0.8])
    policy, reference = (Transition(mean, s, s * 0.5) for mean in (pair(1.1, -0.3), pair(1.0, 0.0)))
    assert float(kl_to_reference(policy, reference)) == pytest.approx(0.0390625, abs=1e-6)
    assert float(kl_to_reference(policy, policy)) == 0


def test_log_prob_is_a_mean_over_tokens_and_channels() -> None:
    # The density at the mean does not depend on how many numbers a sample has.
    for shape in [(1, 1, 1), (1, 4, 8)]:
        policy = Transition(torch.zeros(shape), torch.ones(1), torch.full((1,), 0.5))
        expected = math.log(2) - 0.5 * math.log(2 * math.pi)
        assert float(log_prob("flow", torch.zeros(shape), policy)) == pytest.approx(expected, abs=1e-6)
