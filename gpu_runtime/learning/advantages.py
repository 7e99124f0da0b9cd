"""Group-relative advantages (GRPO, arXiv 2402.03300): a sample compared with its prompt's others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP

_EPSILON = 1e-4
"""Added to the deviation, as Flow-GRPO's public code does, so that tiny spreads stay finite."""

_NO_SPREAD = 1e-8
"""A group whose rewards differ by less has no variance: it carries no gradient."""


def normalised_sum(term_KPG: np.ndarray, weight_K: Sequence[float]) -> np.ndarray:
    """Several rewards as one: each normalised in its prompt group, then weighed and added (GDPO, 2601.05242).

    Of plain sums a group's normalisation sees the reward that varies most; here each counts by its weight.
    A reward that is the same for the whole group adds nothing. A sample that a reward does not count for is
    left out of that reward's mean and deviation, and gets nothing of it: as a 0, every sample that counts
    would be the better for that alone, and the gate's own reward would be paid twice.

    Args:
        term_KPG: K rewards of P groups of G, any float type; NaN where a reward does not count.
        weight_K: of the rewards.

    Returns:
        float64 of shape (P, G); each group's mean is 0.
    """
    term = term_KPG.astype(np.float64)
    rows = [_normalised(row) for row in term.reshape(-1, term.shape[-1])]
    normalised = np.stack(rows).reshape(term.shape)
    return np.stack([weight * one for weight, one in zip(weight_K, normalised, strict=True)]).sum(axis=0)


def _normalised(value_G: np.ndarray) -> np.ndarray:
    """In deviations from the mean of those that count; 0 for the others, and where all are equal."""
    counts_G = ~np.isnan(value_G)
    found_G = np.zeros_like(value_G)
    if counts_G.any():
        counted = value_G[counts_G]
        centred = counted - counted.mean()
        if np.abs(centred).max() > _NO_SPREAD:
            found_G[counts_G] = centred / (counted.std() + _EPSILON)
    return found_G


def _of_each(value_PG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each group, shape (P, 1): to the bit, however many groups come with it."""
    means, deviations = (np.array([of(row) for row in value_PG])[:, None] for of in (np.mean, np.std))
    return means, deviations


@dataclass(frozen=True)
class Advantages:
    """Advantages of an iteration, P prompts of G samples.

    Attributes:
        value_PG: float64, clamped; 0 in dropped groups.
        kept_P: False where all of a group's rewards are equal and such groups are dropped, and where a reward
            is missing.
        failed: groups in which a reward is missing.
    """

    value_PG: np.ndarray
    kept_P: np.ndarray
    failed: int = 0

    @property
    def dropped(self) -> int:
        """Groups that were dropped because they have no variance."""
        return int((~self.kept_P).sum()) - self.failed


def group_advantages(
    reward_PG: np.ndarray,
    std: Literal["group", "batch", "none"] = "group",
    judged_P: np.ndarray | None = None,
    drop_equal: bool = True,
) -> Advantages:
    """A = (R - mean of the group) / (deviation + 1e-4), clamped to plus or minus `ADVANTAGE_CLIP`.

    Args:
        reward_PG: rewards, any float type.
        std: deviation of the `group` or of the whole `batch`, or no division.
        judged_P: False where a reward of the group is missing; None where none is. Such a group is dropped
            whole, and the others are normalised without it: a group of fewer samples would have another
            mean and deviation than the policy's, and the missing ones are rarely missing at random.
        drop_equal: whether groups without variance are dropped; else their advantages are 0.

    Raises:
        ValueError: if a reward is not finite or groups have fewer than 2 samples.
    """
    if reward_PG.ndim != 2 or reward_PG.shape[1] < 2:
        raise ValueError(f"rewards have shape {reward_PG.shape}; (prompts, at least 2) is needed")
    if judged_P is not None and not judged_P.all():
        return _spread_out(group_advantages(reward_PG[judged_P], std, drop_equal=drop_equal), judged_P)
    reward = reward_PG.astype(np.float64)
    if not np.isfinite(reward).all():
        raise ValueError("a reward is not finite; its group should have been left out")
    mean_P1, deviation_P1 = _of_each(reward)
    centred = reward - mean_P1
    differs_P = np.abs(centred).max(axis=1) > _NO_SPREAD
    if std == "group":
        centred = centred / (deviation_P1 + _EPSILON)
    elif std == "batch":
        centred = centred / (reward.std() + _EPSILON)
    value = np.where(differs_P[:, None], centred.clip(-ADVANTAGE_CLIP, ADVANTAGE_CLIP), 0.0)
    return Advantages(value, differs_P if drop_equal else np.ones_like(differs_P))


def _spread_out(judged: Advantages, judged_P: np.ndarray) -> Advantages:
    """The advantages of the judged groups in their places among all groups."""
    value_PG = np.zeros((len(judged_P), judged.value_PG.shape[1]))
    kept_P = np.zeros(len(judged_P), dtype=bool)
    value_PG[judged_P], kept_P[judged_P] = judged.value_PG, judged.kept_P
    return Advantages(value_PG, kept_P, int((~judged_P).sum()))
