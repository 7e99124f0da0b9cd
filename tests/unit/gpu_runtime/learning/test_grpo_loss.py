"""Advantages and the clipped loss against values worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sde_step import StepTimes, log_prob, transition
from gpu_runtime.learning.advantages import group_advantages
from gpu_runtime.learning.objectives.base import policy_loss


def rewards(*groups: list[float]) -> np.ndarray:
    """Rewards of one group a row."""
    return np.array(groups, dtype=np.float64)


def test_loss_takes_the_larger_of_the_clipped_and_the_unclipped_term() -> None:
    # ratio    A     -A r     -A clip(r, 0.9, 1.1)    max
    # 1.2      2     -2.4     -2.2                    -2.2   clipped
    # 1.2     -1      1.2      1.1                     1.2
    # 0.8      2     -1.6     -1.8                    -1.6
    # 0.8     -1      0.8      0.9                     0.9   clipped
    # 1.05     3     -3.15    -3.15                   -3.15
    ratio = torch.tensor([1.2, 1.2, 0.8, 0.8, 1.05], dtype=torch.float64)
    advantage = torch.tensor([2.0, -1, 2, -1, 3], dtype=torch.float64)
    old = torch.tensor([-0.3, 0.1, 2.0, -1.0, 0.0], dtype=torch.float64)
    terms = policy_loss(old + torch.log(ratio), old, advantage, 0.1)
    assert terms.loss_R.tolist() == pytest.approx([-2.2, 1.2, -1.6, 0.9, -3.15], abs=1e-6)
    assert terms.ratio_R is not None and terms.clipped_R is not None
    assert terms.ratio_R.tolist() == pytest.approx(ratio.tolist(), abs=1e-6)
    assert terms.clipped_R.tolist() == [True, False, False, True, False]
    assert terms.batch_terms(torch.ones(5), torch.zeros(()), [4, 3]).deviation == pytest.approx(0.2, abs=1e-6)


def test_clipped_rows_have_no_gradient_and_the_others_have_minus_a_r() -> None:
    ratio = torch.tensor([1.2, 1.2, 0.8, 0.8], dtype=torch.float64)
    log_prob_R = torch.log(ratio).requires_grad_()
    advantage = torch.tensor([2.0, -1, 2, -1], dtype=torch.float64)
    policy_loss(log_prob_R, torch.zeros(4, dtype=torch.float64), advantage, 0.1).loss_R.sum().backward()
    assert log_prob_R.grad is not None
    assert log_prob_R.grad.tolist() == pytest.approx([0.0, 1.2, -1.6, 0.0], abs=1e-6)


@pytest.mark.parametrize("advantage", [1.7, -0.4])
def test_gradient_at_ratio_one_is_minus_a_times_the_gradient_of_log_p(advantage: float) -> None:
    # One number, sigma 0.5 -> 0.25, a = 0.8: mean = 0.84 x - 0.33 v, deviation 0.4 (test_sde_step).
    # d log p / d v = (x' - mean) / 0.16 * -0.33; with noise 1.5: 0.6 / 0.16 * -0.33 = -1.2375.
    times = StepTimes(torch.tensor([0.5]), torch.tensor([0.25]), torch.tensor([0.5]))
    velocity = torch.full((1, 1, 1), -1.0, requires_grad=True)
    policy = transition("flow", torch.full((1, 1, 1), 2.0), velocity, times, torch.tensor([0.8]))
    after = policy.sample(torch.full((1, 1, 1), 1.5)).detach()
    log_prob_R = log_prob("flow", after, policy)
    terms = policy_loss(log_prob_R, log_prob_R.detach(), torch.tensor([advantage]), 1e-4)
    terms.loss_R.sum().backward()
    assert velocity.grad is not None
    assert float(terms.loss_R.detach()) == pytest.approx(-advantage, abs=1e-6)
    assert float(velocity.grad) == pytest.approx(-advantage * -1.2375, abs=1e-5)


def test_group_advantages_divide_by_the_groups_deviation() -> None:
    # Group 1: mean 0.5, deviation 0.5, so 0.5 / 0.5001. Group 2: mean 13, deviations -3 -1 0 4,
    # variance 26 / 4 = 6.5, deviation 2.5495097568, divided by 2.5496097568.
    found = group_advantages(rewards([1, 0, 0, 1], [10, 12, 13, 17]), "group")
    plus = 0.9998000400
    assert found.value_PG[0].tolist() == pytest.approx([plus, -plus, -plus, plus], abs=1e-6)
    second = [-1.1766506541, -0.3922168847, 0.0, 1.5688675388]
    assert found.value_PG[1].tolist() == pytest.approx(second, abs=1e-6)
    assert found.kept_P.tolist() == [True, True]
    assert found.dropped == 0


def test_batch_advantages_divide_by_the_deviation_of_all_rewards() -> None:
    # All: mean 8.5, deviations -5.5 -7.5 1.5 11.5, variance 221 / 4 = 55.25, deviation 7.4330343736.
    found = group_advantages(rewards([3, 1], [10, 20]), "batch")
    assert found.value_PG[0].tolist() == pytest.approx([0.1345327457, -0.1345327457], abs=1e-6)
    assert found.value_PG[1].tolist() == pytest.approx([-0.6726637284, 0.6726637284], abs=1e-6)


def test_advantages_without_a_deviation_are_only_centred() -> None:
    found = group_advantages(rewards([3, 1], [2, 4.5]), "none")
    assert found.value_PG.tolist() == [[1.0, -1.0], [-1.25, 1.25]]


def test_advantages_are_clamped() -> None:
    # One success of 100: mean 0.01, deviation 0.0994987437; 0.99 / 0.0995987437 = 9.94, clamped to 5.
    group = [1.0] + [0.0] * 99
    found = group_advantages(rewards(group), "group")
    assert found.value_PG[0, 0] == 5.0
    assert float(found.value_PG[0, 1]) == pytest.approx(-0.1004028726, abs=1e-6)
    assert group_advantages(rewards([19, 1]), "none").value_PG.tolist() == [[5.0, -5.0]]


@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_groups_without_variance_are_dropped(std) -> None:
    # 0.1 is no sum of powers of two: its mean over three is off by a rounding, which is no variance.
    found = group_advantages(rewards([0.1, 0.1, 0.1], [0, 1, 0], [1, 1, 1]), std)
    assert found.kept_P.tolist() == [False, True, False]
    assert found.dropped == 2
    assert found.value_PG[0].tolist() == found.value_PG[2].tolist() == [0.0, 0.0, 0.0]
    assert np.abs(found.value_PG[1]).min() > 0
    assert group_advantages(rewards([-1e-8, 1e-8], [-2e-8, 2e-8]), std).kept_P.tolist() == [False, True]


def test_groups_without_variance_may_be_trained_on_with_advantages_of_zero() -> None:
    drawn = rewards([0.1, 0.1, 0.1], [0, 1, 0])
    dropped, trained = (group_advantages(drawn, "group", drop_equal=drop) for drop in (True, False))
    assert (dropped.kept_P.tolist(), dropped.dropped) == ([False, True], 1)
    assert (trained.kept_P.tolist(), trained.dropped) == ([True, True], 0)
    assert np.array_equal(trained.value_PG, dropped.value_PG)
    failed = group_advantages(drawn, "group", np.array([True, False]), drop_equal=False)
    assert (failed.kept_P.tolist(), failed.dropped, failed.failed) == ([True, False], 0, 1)


def test_all_groups_without_variance() -> None:
    found = group_advantages(rewards([0, 0], [1, 1]), "batch")
    assert found.dropped == 2
    assert not found.value_PG.any()


def test_float32_rewards_are_worked_in_float64() -> None:
    found = group_advantages(np.array([[0.25, 0.75]], dtype=np.float32), "group")
    assert found.value_PG.dtype == np.float64
    assert float(found.value_PG[0, 1]) == pytest.approx(0.25 / 0.2501, abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        group_advantages(rewards([0.0, bad]))


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(rewards([1.0], [0.0]))
