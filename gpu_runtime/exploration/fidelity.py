"""How faithful a draft is to the rollout, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable

from storage.config.run_config import SamplingConfig

FULL = "full"
"""A rollout in everything but the weights."""


def costs_of(names: Iterable[str], sampling: SamplingConfig) -> dict[str, float]:
    """What a draft of each fidelity costs, in rollouts.

    `full` is a rollout. `preview-K` does K of its denoising steps and judges the image that the model then
    predicts, which takes one evaluation of the model more. `steps-K` goes from the same initial noise to an
    image in K denoising steps.

    Raises:
        ValueError: if there is no such fidelity, or the sampling does not allow it.
    """
    kinds = dict.fromkeys(names)
    for name in kinds:
        _check(name, sampling)
        if preview_step(name) and f"steps-{preview_step(name)}" in kinds:
            raise ValueError(
                f"fidelities {name} and steps-{preview_step(name)} take as many denoising steps; one batch "
                "could hold both: choose another K for one of them"
            )
    evaluations = {
        name: own_schedule(name) or (preview_step(name) or sampling.rollout_steps - 1) + 1 for name in kinds
    }
    return {name: count / sampling.rollout_steps for name, count in evaluations.items()}


def denoising_steps(name: str, rollout_steps: int) -> int:
    """Denoising steps of a draft."""
    return preview_step(name) or own_schedule(name) or rollout_steps


def preview_step(name: str) -> int:
    """Denoising steps before a preview's prediction; 0 for other drafts."""
    return _number(name, "preview")


def own_schedule(name: str) -> int:
    """Denoising steps of a draft with a schedule of its own; 0 where it has the rollout's."""
    return _number(name, "steps")


def _number(name: str, kind: str) -> int:
    prefix, _, number = name.partition("-")
    return int(number) if prefix == kind and number.isdecimal() else 0


def _check(name: str, sampling: SamplingConfig) -> None:
    if name == FULL:
        return
    most = sampling.rollout_steps - 1
    if not 1 <= (preview_step(name) or own_schedule(name)) <= most:
        raise ValueError(
            f"fidelity {name!r} is unknown; it is `full`, `preview-K` or `steps-K`, with K from 1 to "
            f"sampling.rollout_steps - 1 = {most}"
        )
    if own_schedule(name) and sampling.sde != "none":
        raise ValueError(
            f"fidelity {name} needs sampling.sde=none, and it is {sampling.sde}: only there is a seed its "
            "initial noise alone, which fewer denoising steps share; use preview-K, or set sampling.sde=none"
        )
