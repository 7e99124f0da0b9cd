"""How faithful a draft is to the rollout, and what it costs."""

from __future__ import annotations

FULL = "full"
"""A rollout in everything but the weights."""


def evaluations_of(name: str, rollout_steps: int) -> int:
    """Evaluations of the model that a draft of this fidelity costs.

    `full` is a rollout; `preview-K` does K denoising steps and judges the image that the model then
    predicts, which takes one evaluation of the model more.

    Raises:
        ValueError: if there is no such fidelity.
    """
    if name == FULL:
        return rollout_steps
    prefix, _, steps = name.partition("-")
    if prefix != "preview" or not steps.isdigit() or not 1 <= int(steps) < rollout_steps:
        raise ValueError(
            f"fidelity {name!r} is unknown; it is `full`, or `preview-K` with K from 1 to "
            f"sampling.rollout_steps - 1 = {rollout_steps - 1}"
        )
    return int(steps) + 1


def preview_step(name: str) -> int | None:
    """Denoising steps before a preview's prediction; None for a full draft."""
    return None if name == FULL else int(name.partition("-")[2])
