"""Group-relative advantages (GRPO): how much better a sample is than its prompt's others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

_EPSILON = 1e-4
"""Added to the deviation, as Flow-GRPO's public code does, so that tiny spreads stay finite."""

_NO_SPREAD = 1e-8
"""A group whose rewards differ by less has no variance: it carries no gradient."""


@dataclass(frozen=True)
class Advantages:
    """Advantages of an iteration, P prompts of G samples.

    Attributes:
        value_PG: float64, clamped; 0 in dropped groups.
        kept_P: False where all of a group's rewards equal what they are measured from.
    """

    value_PG: torch.Tensor
    kept_P: torch.Tensor

    @property
    def dropped(self) -> int:
        """Groups without variance."""
        return int((~self.kept_P).sum())


def group_advantages(
    reward_PG: torch.Tensor,
    std: Literal["group", "batch", "none"] = "group",
    clip: float = 5.0,
    pool_P2: torch.Tensor | None = None,
) -> Advantages:
    """A = (R - mean of the group) / (deviation + 1e-4), clamped to plus or minus `clip`.

    Args:
        reward_PG: rewards, any float type.
        std: deviation of the `group` or of the whole `batch`, or no division.
        clip: largest magnitude of an advantage.
        pool_P2: mean and deviation of a larger pool of which the group was chosen, to be used instead of
            the group's own; NaN where a prompt has none. A chosen group's own mean is not the policy's:
            rare successes that were sought out are no less rare for that.

    Raises:
        ValueError: if a reward is not finite or groups have fewer than 2 samples.
    """
    if reward_PG.ndim != 2 or reward_PG.shape[1] < 2:
        raise ValueError(f"rewards have shape {tuple(reward_PG.shape)}; (prompts, at least 2) is needed")
    reward = reward_PG.to(torch.float64)
    if not torch.isfinite(reward).all():
        raise ValueError("a reward is not finite; the scorer guard should have replaced it by 0")
    mean_P1, deviation_P1 = reward.mean(dim=1, keepdim=True), reward.std(dim=1, correction=0, keepdim=True)
    if pool_P2 is not None:
        pool = pool_P2.to(torch.float64)
        mean_P1 = torch.where(pool[:, :1].isnan(), mean_P1, pool[:, :1])
        # A pool without spread says nothing of how far a score is from the usual.
        unknown_P1 = pool[:, 1:].isnan() | (pool[:, 1:] <= _NO_SPREAD)
        deviation_P1 = torch.where(unknown_P1, deviation_P1, pool[:, 1:])
    centred = reward - mean_P1
    kept_P = centred.abs().amax(dim=1) > _NO_SPREAD
    if std == "group":
        centred = centred / (deviation_P1 + _EPSILON)
    elif std == "batch":
        centred = centred / (reward.std(correction=0) + _EPSILON)
    value = torch.where(kept_P[:, None], centred.clamp(-clip, clip), torch.zeros_like(centred))
    return Advantages(value, kept_P)
