"""How far draft scores can be trusted, measured: pairs of a draft's score and the full score.

The kept extremes of noisy scores look better than they are (winner's curse; DRIFT, arXiv 2601.12401).
A change of scale that is the same for all candidates cannot help, because it moves no rank; what can
is the expected full score given the draft's, which pulls those scores in that rarely come true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_ITERATIONS = 8
"""Iterations whose pairs count: the policy moves."""

_BINS = 20
"""Scores are told apart in steps of 1 / _BINS."""

_TRUST = 4.0
"""A draft's own score counts as much as so many pairs."""

_ENOUGH = 64
"""Pairs from which a correlation is believed."""

Pair = tuple[int, float, float]
"""Prompt, draft score, full score."""


class DraftReliability:
    """Windowed pairs of one fidelity."""

    def __init__(self) -> None:
        self._window: list[list[Pair]] = []
        self._now: list[Pair] = []

    def note(self, prompt: int, draft: float, full: float) -> None:
        """Note a pair of the running iteration; it counts once the iteration has ended."""
        self._now.append((prompt, draft, full))

    def end_iteration(self) -> None:
        """The pairs noted since the last call become the window's newest."""
        if self._now:
            self._window = [*self._window, self._now][-_ITERATIONS:]
            self._now = []

    def reliability(self) -> float | None:
        """Squared correlation within prompts; None while there are too few pairs or no spread."""
        if sum(len(pairs) for pairs in self._window) < _ENOUGH:
            return None
        groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for place, pairs in enumerate(self._window):
            for prompt, draft, full in pairs:
                groups.setdefault((place, prompt), []).append((draft, full))
        centred = [np.array(group) - np.mean(group, axis=0) for group in groups.values()]
        draft, full = np.concatenate(centred).T
        size = float(draft @ draft) * float(full @ full)
        return float(draft @ full) ** 2 / size if size > 0 else None

    def expected(self, score: float) -> float:
        """The full score to expect of a draft with this score."""
        alike = [
            full
            for pairs in self._window
            for _, draft, full in pairs
            if round(draft * _BINS) == round(score * _BINS)
        ]
        return (_TRUST * score + sum(alike)) / (_TRUST + len(alike))

    def state(self) -> list[list[Pair]]:
        """JSON values, for a checkpoint."""
        return self._window

    def restore(self, state: Iterable[Iterable[Any]]) -> None:
        """The inverse of `state`."""
        self._window = [[(prompt, draft, full) for prompt, draft, full in pairs] for pairs in state]
