"""One-step off-policy: the chosen drafts are the training samples, until a guard finds this harmful.

Drafts are made as in `stale` and trained on unchanged; only seeds without a draft are rolled out. After
every training phase the guard checks whether the drafts' age hurts; once it does, the run continues as
`stale`, which rolls the chosen seeds out with newer weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_runtime.exploration.fidelity import FULL
from gpu_runtime.exploration.plan import Note
from gpu_runtime.exploration.strategies.stale import Stale
from gpu_runtime.exploration.strategies.strategy import HeldOut, TrainingEvidence
from gpu_runtime.learning.report import OffPolicyFigures
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError

_ITERATIONS = 3
"""Iterations over which the share of clipped steps is averaged: one update has too few samples."""

_MOST_CLIPPED = 0.25
"""Largest share of stale steps without a gradient. About half of those outside the clip range have one,
because their advantage pulls them back. So at a quarter, half of all steps are outside."""

_STANDARD_ERRORS = 3.0
"""Standard errors by which a held-out score must fall below the best earlier one."""

_LEAST_PROMPTS = 8
"""Fewest held-out prompts for a trusted standard error."""


class OffPolicy(Stale):
    """Trains on drafts from the training window, until the guard finds this harmful."""

    def __init__(self) -> None:
        self.trains_on_drafts = True
        self._clipped: tuple[float, ...] = ()
        self._since: int | None = 0  # first evaluation to compare; None until it trains on drafts

    def check(self, config: RunConfig) -> None:
        """Also refuse drafts that are not samples of the policy."""
        super().check(config)
        if config.exploration.fidelities != (FULL,):
            raise ConfigurationError(
                f"exploration.strategy is {config.exploration.strategy} with exploration.fidelities="
                f"{list(config.exploration.fidelities)}: it trains on its drafts, and a cheaper draft is "
                "not a sample of the policy; remove fidelities, or set exploration.strategy=stale"
            )

    def begin(self) -> None:
        """Judge only what follows: so far the run followed another strategy."""
        self._clipped, self._since = (), None

    def after_training(self, iteration: int, evidence: TrainingEvidence) -> tuple[Note, ...]:
        """Stop training on drafts if too many steps lack a gradient, or the policy got worse."""
        if not self.trains_on_drafts:
            return ()
        figures = evidence.figures
        if figures is not None:
            self._clipped = (*self._clipped, figures.clip_share)[-_ITERATIONS:]
            if self._since is None:
                self._since = iteration - 1
        reason = self._too_old(figures)
        if reason is None and self._since is not None:
            reason = _fallen(evidence.held_out(), self._since)
        if reason is None:
            return ()
        self.trains_on_drafts = False
        message = (
            f"iteration {iteration}: {reason}; from the next iteration on, chosen seeds are rolled out "
            "again, as with exploration.strategy=stale. A lower optimizer.learning_rate keeps drafts closer "
            "to the policy"
        )
        return (("staleness", message),)

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {
            "trains_on_drafts": self.trains_on_drafts,
            "clipped": list(self._clipped),
            "since": self._since,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""
        self.trains_on_drafts = state["trains_on_drafts"]
        self._clipped = tuple(state["clipped"])
        self._since = state["since"]

    def _too_old(self, figures: OffPolicyFigures | None) -> str | None:
        """Return a message if the objective's clip range removes too much of the drafts' gradient."""
        if figures is None or len(self._clipped) < _ITERATIONS:
            return None
        share = statistics.fmean(self._clipped)
        if share <= _MOST_CLIPPED:
            return None
        return (
            f"{share:.0%} of the drafts' denoising steps had no gradient at the first update (mean of "
            f"{_ITERATIONS} iterations, limit {_MOST_CLIPPED:.0%}), because their probability ratio, with "
            f"a spread of {figures.ratio_spread:.2g}, was outside the clip range. Raise "
            "algorithm.options.clip_range above that spread in a new run"
        )


def _fallen(held_out: HeldOut, since: int) -> str | None:
    """Return a message if the newest evaluation is significantly worse than an earlier one since then."""
    held_out = {each: scores for each, scores in held_out.items() if each >= since}
    if len(held_out) < 2:
        return None
    newest = max(held_out)
    best = max((each for each in held_out if each != newest), key=lambda each: _mean(held_out[each]))
    # Prompts and noise never change, so a prompt's difference is due to training.
    prompts = sorted(held_out[newest].keys() & held_out[best].keys())
    apart = np.array([held_out[newest][prompt] - held_out[best][prompt] for prompt in prompts])
    if len(apart) < _LEAST_PROMPTS:
        return None
    error = float(apart.std(ddof=1)) / len(apart) ** 0.5
    if not float(apart.mean()) < -_STANDARD_ERRORS * error:
        return None
    return (
        f"the held-out score after iteration {newest} is {_mean(held_out[newest]):.3f}, below the "
        f"{_mean(held_out[best]):.3f} after iteration {best} by more than {_STANDARD_ERRORS:g} standard "
        "errors"
    )


def _mean(scores: Mapping[int, float]) -> float:
    return statistics.fmean(scores.values()) if scores else 0.0
