"""Group-relative advantages (GRPO, arXiv 2402.03300): a sample compared with the others of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP

_EPSILON = 1e-4
"""Term added to the deviation, as in Flow-GRPO's public code, so that tiny spreads stay finite."""

_NO_SPREAD = 1e-8
"""Largest deviation from the mean of a group without variance, which carries no gradient."""


def normalised_sum(term_KPG: np.ndarray, weight_K: Sequence[float]) -> np.ndarray:
    """Combine rewards: each is normalised in its prompt group, then weighted and added (GDPO, 2601.05242).

    In plain sums the reward that varies most dominates a group's normalisation; here each counts by its
    weight. A reward that is the same for the whole group adds nothing. A sample that a reward does not count
    for is left out of that reward's mean and deviation, and gets nothing from it: if it counted as 0, every
    sample that counts would gain by that alone, and the gate's own reward would be paid twice.

    Args:
        term_KPG: K rewards of P groups of G, any float type; NaN where a reward does not count.
        weight_K: weights of the rewards.

    Returns:
        float64 of shape (P, G); each group's mean is 0.
    """
    term = term_KPG.astype(np.float64)
    rows = [_normalised(row) for row in term.reshape(-1, term.shape[-1])]
    normalised = np.stack(rows).reshape(term.shape)
    return np.stack([weight * one for weight, one in zip(weight_K, normalised, strict=True)]).sum(axis=0)


def _normalised(value_G: np.ndarray) -> np.ndarray:
    """Return standardised values of those that count; 0 for the others, and if all are equal."""
    counts_G = ~np.isnan(value_G)
    found_G = np.zeros_like(value_G)
    if counts_G.any():
        counted = value_G[counts_G]
        centred = counted - counted.mean()
        if np.abs(centred).max() > _NO_SPREAD:
            found_G[counts_G] = centred / (counted.std() + _EPSILON)
    return found_G


def _of_each(value_PG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each group, shape (P, 1), with bits that do not depend on other groups."""
    means, deviations = (np.array([of(row) for row in value_PG])[:, None] for of in (np.mean, np.std))
    return means, deviations


@dataclass(frozen=True)
class Advantages:
    """The advantages of an iteration, P prompts of G samples.

    Attributes:
        value_PG: float64, clamped; 0 in dropped groups.
        kept_P: False if all of a group's rewards are equal and such groups are dropped, or if a reward is
            missing.
        failed: number of groups in which a reward is missing.
    """

    value_PG: np.ndarray
    kept_P: np.ndarray
    failed: int = 0

    @property
    def dropped(self) -> int:
        """Number of groups that were dropped because they have no variance."""
        return int((~self.kept_P).sum()) - self.failed


def group_advantages(
    reward_PG: np.ndarray,
    std: Literal["group", "batch", "none"] = "group",
    judged_P: np.ndarray | None = None,
    drop_equal: bool = True,
) -> Advantages:
    """Return A = (R - mean of the group) / (deviation + 1e-4), clamped to +-`ADVANTAGE_CLIP`.

    Args:
        reward_PG: rewards, any float type.
        std: deviation of the `group` or of the whole `batch`, or no division.
        judged_P: False if a reward of the group is missing; None if none is. Such a group is dropped whole,
            and the others are normalised without it: the mean and deviation of a smaller group would differ
            from the policy's, and rewards are rarely missing at random.
        drop_equal: True to drop groups without variance; else their advantages are 0.

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
    """Return the advantages of the judged groups at their indices among all groups."""
    value_PG = np.zeros((len(judged_P), judged.value_PG.shape[1]))
    kept_P = np.zeros(len(judged_P), dtype=bool)
    value_PG[judged_P], kept_P[judged_P] = judged.value_PG, judged.kept_P
    return Advantages(value_PG, kept_P, int((~judged_P).sum()))
