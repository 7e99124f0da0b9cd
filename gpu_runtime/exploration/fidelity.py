"""The fidelity of drafts to rollouts: the cost of each kind, and how far to trust its scores.

Trust is measured on pairs of a draft's score and the full score. The kept extremes of noisy scores look
better than they are (winner's curse; DRIFT, arXiv 2601.12401). Rescaling all candidates alike cannot help,
because it changes no rank; replacing a draft's score by the full score it predicts can, because it shrinks
extremes that rarely hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpu_runtime.exploration.draft_planner import Arm
from storage.config.run_config import SamplingConfig

FULL = "full"
"""Fidelity of a draft that differs from a rollout only in its weights."""

_ITERATIONS = 8
"""Iterations whose pairs count; older ones do not, because the policy moves."""

_BINS = 20
"""Bins per unit of score."""

_TRUST = 4.0
"""Weight of a draft's own score, in pairs."""

_ENOUGH = 64
"""Fewest pairs from which a correlation is trusted."""

Pair = tuple[int, float, float]
"""Prompt, draft score, full score."""


def costs_of(names: Iterable[str], sampling: SamplingConfig) -> dict[str, float]:
    """Return the cost of a draft of each fidelity, in rollouts.

    `full` is a rollout. `preview-K` runs K of its denoising steps and scores the image that the model then
    predicts, at the cost of one more model evaluation. `steps-K` denoises the same initial noise in K
    denoising steps.

    Raises:
        ValueError: if a fidelity is unknown or incompatible with the sampling settings.
    """
    costs = dict.fromkeys(names, 1.0)
    most = sampling.rollout_steps - 1
    for name in costs:
        preview, own = preview_step(name), own_schedule(name)
        if name != FULL and not 1 <= (preview or own) <= most:
            raise ValueError(
                f"fidelity {name!r} is unknown; use `full`, `preview-K` or `steps-K`, with K from 1 to "
                f"sampling.rollout_steps - 1 = {most}"
            )
        if own and sampling.sde != "none":
            raise ValueError(
                f"fidelity {name} needs sampling.sde=none, not {sampling.sde}: only then does a seed fix "
                "just the initial noise, which fewer steps can share; use preview-K, or set sampling.sde=none"
            )
        if preview and f"steps-{preview}" in costs:
            raise ValueError(
                f"fidelities {name} and steps-{preview} take equally many denoising steps, so one "
                "batch could mix them: choose another K for one of them"
            )
        costs[name] = (own or (preview or most) + 1) / sampling.rollout_steps
    return costs


def denoising_steps(name: str, rollout_steps: int) -> int:
    """Return the denoising steps of a draft."""
    return preview_step(name) or own_schedule(name) or rollout_steps


def preview_step(name: str) -> int:
    """Return the denoising steps before a preview's prediction; 0 for other drafts."""
    return _number(name, "preview")


def own_schedule(name: str) -> int:
    """Return the denoising steps of a draft with its own schedule; 0 if it uses the rollout's."""
    return _number(name, "steps")


def _number(name: str, kind: str) -> int:
    prefix, _, number = name.partition("-")
    return int(number) if prefix == kind and number.isdecimal() else 0


class DraftReliability:
    """Pairs of scores of one fidelity, over a window of iterations.

    Attributes:
        window: pairs of each iteration, as JSON values for a checkpoint.
    """

    def __init__(self) -> None:
        self.window: list[list[Pair]] = []
        self._now: list[Pair] = []

    def note(self, prompt: int, draft: float, full: float) -> None:
        """Record a pair of the current iteration; it counts once the iteration has ended.

        Args:
            full: score of the full sample.
        """
        self._now.append((prompt, draft, full))

    def end_iteration(self) -> None:
        """Add the pairs recorded since the last call, if any, to the window."""
        self.window = [*self.window, self._now][-_ITERATIONS:]
        self._now = []

    def reliability(self) -> float | None:
        """Return the squared correlation within prompts; None with too few pairs or no spread."""
        if sum(len(pairs) for pairs in self.window) < _ENOUGH:
            return None
        groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for place, pairs in enumerate(self.window):
            for prompt, draft, full in pairs:
                groups.setdefault((place, prompt), []).append((draft, full))
        centred = [np.array(group) - np.mean(group, axis=0) for group in groups.values()]
        draft, full = np.concatenate(centred).T
        size = float(draft @ draft) * float(full @ full)
        return float(draft @ full) ** 2 / size if size > 0 else None

    def expected(self, score: float) -> float:
        """Return the expected full score of a draft with this score."""
        alike = [
            full
            for pairs in self.window
            for _, draft, full in pairs
            if round(draft * _BINS) == round(score * _BINS)
        ]
        return (_TRUST * score + sum(alike)) / (_TRUST + len(alike))


class MeasuredFidelities:
    """The measured reliability of every fidelity, and the arms to draft with.

    A draft in use is stale: older weights drew it, and a fresh full score shows what its score should
    have been. Previews, in use or not, are also drawn fresh, with the weights of that full score. So a
    preview can prove itself before it is used, and staleness is known even without full drafts.

    Args:
        costs: cost of a draft of each configured fidelity, in full drafts (`costs_of`).
    """

    def __init__(self, costs: Mapping[str, float]) -> None:
        self._costs = costs
        self._fresh = {name: DraftReliability() for name in costs if name != FULL}
        self._stale = {name: DraftReliability() for name in (FULL, *self._fresh)}

    def note(self, fidelity: str, prompt: int, draft: float, full: float, fresh: bool = False) -> None:
        """Record the score of a draft, and of the full sample with the rollout's weights.

        Args:
            fresh: True for a preview with those weights; False for a draft that was used.
        """
        (self._fresh if fresh else self._stale)[fidelity].note(prompt, draft, full)

    def end_iteration(self) -> None:
        """Count the recorded pairs from now on."""
        for known in (*self._stale.values(), *self._fresh.values()):
            known.end_iteration()

    def arms(self) -> list[Arm]:
        """Return the measured previews, and full drafts if configured or if no preview is measured."""
        staleness = self._staleness()
        full, previews = Arm(FULL, 1.0, staleness), []
        for name, in_fresh in self._fresh.items():
            stale, fresh = self._stale[name].reliability(), in_fresh.reliability()
            if stale is not None:
                previews.append(Arm(name, self._costs[name], stale, self._stale[name].expected))
            elif fresh is not None:
                previews.append(Arm(name, self._costs[name], fresh * staleness, in_fresh.expected))
        return [full, *previews] if FULL in self._costs else previews or [full]

    def _staleness(self) -> float:
        """Return the squared correlation of stale and fresh full drafts; 1 until measured."""
        measured = self._stale[FULL].reliability()
        if measured is not None:
            return measured
        for name, known in self._fresh.items():
            stale, fresh = self._stale[name].reliability(), known.reliability()
            if stale is not None and fresh:
                # A used preview loses reliability both to its fewer steps and to its age.
                return min(1.0, stale / fresh)
        return 1.0

    def state(self) -> dict[str, dict[str, list[list[Pair]]]]:
        """Return JSON values, for a checkpoint."""
        return {
            "stale": {name: known.window for name, known in self._stale.items()},
            "fresh": {name: known.window for name, known in self._fresh.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned; missing fidelities start from scratch."""
        for name, known in self._stale.items():
            known.window = list(state.get("stale", {}).get(name, ()))
        for name, known in self._fresh.items():
            known.window = list(state.get("fresh", {}).get(name, ()))
