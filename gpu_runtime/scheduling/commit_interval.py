"""How many denoising steps a device does between two commits. Pure: what a step takes is an argument."""

from __future__ import annotations

import math

_COMMIT_STEPS = 4
"""Denoising steps between two commits, or a multiple of them, where the settings do not say how many."""

_WORTH_A_COMMIT_S = 1.0
"""Seconds of work that a commit must be worth, where the settings do not say how many steps."""

DRAFT_CHUNK_STEPS = 2
"""Denoising steps of a draft's calls, of which a device has one at a time: what the rollout may have to wait
for when a training window closes."""


def steps_to_commit(configured: int, step_s: float | None, drafts: bool = False) -> int:
    """Denoising steps of a device's next chunk, after which its samples are saved.

    A commit costs some milliseconds, whatever the model: unless the settings say how often, it must save
    more than that.

    Args:
        configured: `runtime.commit_steps`; 0 goes by measured times.
        step_s: seconds that a denoising step last took the device; None before it has done any.
        drafts: whether it makes drafts, which end with the training window.
    """
    steps = configured or _COMMIT_STEPS
    if not configured and step_s:
        steps *= max(1, math.ceil(_WORTH_A_COMMIT_S / (_COMMIT_STEPS * step_s)))
    return min(steps, DRAFT_CHUNK_STEPS) if drafts else steps
