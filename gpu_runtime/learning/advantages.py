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
        kept_P: False where a group's rewards are all equal.
    """

    value_PG: torch.Tensor
    kept_P: torch.Tensor

    @property
    def dropped(self) -> int:
        """Groups without variance."""
        return int((~self.kept_P).sum())


def group_advantages(
    reward_PG: torch.Tensor, std: Literal["group", "batch", "none"] = "group", clip: float = 5.0
) -> Advantages:
    """A = (R - mean of the group) / (deviation + 1e-4), clamped to plus or minus `clip`.

    Args:
        reward_PG: rewards, any float type.
        std: deviation of the `group` or of the whole `batch`, or no division.
        clip: largest magnitude of an advantage.

    Raises:
        ValueError: if a reward is not finite or groups have fewer than 2 samples.
    """
    if reward_PG.ndim != 2 or reward_PG.shape[1] < 2:
        raise ValueError(f"rewards have shape {tuple(reward_PG.shape)}; (prompts, at least 2) is needed")
    reward = reward_PG.to(torch.float64)
    if not torch.isfinite(reward).all():
        raise ValueError("a reward is not finite; the scorer guard should have replaced it by 0")
    centred = reward - reward.mean(dim=1, keepdim=True)
    kept_P = (reward.amax(dim=1) - reward.amin(dim=1)) > _NO_SPREAD
    if std == "group":
        centred = centred / (reward.std(dim=1, correction=0, keepdim=True) + _EPSILON)
    elif std == "batch":
        centred = centred / (reward.std(correction=0) + _EPSILON)
    value = torch.where(kept_P[:, None], centred.clamp(-clip, clip), torch.zeros_like(centred))
    return Advantages(value, kept_P)
