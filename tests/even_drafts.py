"""Plans that draft all prompts alike, whatever they score: they follow from the settings alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner


def draft_evenly(patch: pytest.MonkeyPatch) -> None:
    """Let every plan draft all prompts alike.

    Args:
        patch: takes it back.
    """
    patch.setattr(DraftPlanner, "_first_look", lambda planner: _evenly(planner, _round_of(planner)))
    patch.setattr(DraftPlanner, "_by_gain", _evenly)


def _round_of(planner: DraftPlanner) -> int:
    return planner._affordable(planner._round_size)


def _evenly(planner: DraftPlanner, count: int) -> list[Draft]:
    """So many drafts, each of a prompt with the fewest; of equal ones the first."""
    wanted = np.zeros_like(planner._issued)
    for level in range(1, planner.settings.candidates + 1):
        below = np.flatnonzero(planner._issued + wanted < level)
        wanted[below[: count - int(wanted.sum())]] += 1
    return planner._issue(wanted)
