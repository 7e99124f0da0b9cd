"""What drafts of earlier iterations say of a prompt's next scores. Windowed: the policy moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_runtime.exploration.prediction.score_model import PastScores

KEPT_SCORES = 32
"""Most scores remembered of a prompt, spread over those that were seen."""

_MOST_WEIGHT = 8.0
"""A prompt's past counts as at most so many drafts of today."""

_COMMON_ITERATIONS = 4
"""Iterations whose prompts say how prompts differ."""

_MOST_OTHERS = 256
"""Most prompts that say so."""


class ScoreHistory:
    """Scores by prompt, forgotten with a half-life in iterations.

    Args:
        half_life: iterations after which a prompt's scores count half.
    """

    def __init__(self, half_life: float = 10.0) -> None:
        self._half_life = half_life
        self._of_prompt: dict[int, tuple[int, list[float]]] = {}

    def add(self, iteration: int, scores: Mapping[int, Sequence[float]]) -> None:
        """Note the scores of an iteration's drafts, by prompt; a prompt's older ones give way."""
        for prompt, values in scores.items():
            if values:
                self._of_prompt[prompt] = (iteration, _spread(values))

    def past(self, prompts: Sequence[int], iteration: int) -> PastScores:
        """What earlier iterations say of these prompts and of how prompts differ.

        Args:
            prompts: to be explored.
            iteration: for which.
        """
        own: dict[int, tuple[tuple[float, ...], float]] = {}
        others: list[tuple[int, int]] = []
        explored = set(prompts)
        for prompt, (seen, values) in self._of_prompt.items():
            if prompt in explored:
                weight = min(len(values), _MOST_WEIGHT) * 0.5 ** ((iteration - seen) / self._half_life)
                own[prompt] = tuple(values), weight / len(values)
            elif iteration - seen <= _COMMON_ITERATIONS:
                others.append((-seen, prompt))
        newest = [prompt for _, prompt in sorted(others)[:_MOST_OTHERS]]
        return PastScores(own, tuple(tuple(self._of_prompt[prompt][1]) for prompt in newest))

    def state(self) -> dict[str, Any]:
        """JSON values, for a checkpoint."""
        return {
            "of_prompt": [[prompt, seen, values] for prompt, (seen, values) in self._of_prompt.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`; what earlier versions kept beside it is not needed."""
        self._of_prompt = {prompt: (seen, list(values)) for prompt, seen, values in state["of_prompt"]}


def _spread(values: Sequence[float]) -> list[float]:
    """At most KEPT_SCORES of the values, evenly from the lowest to the highest."""
    ordered = sorted(values)
    if len(ordered) <= KEPT_SCORES:
        return ordered
    places = np.linspace(0, len(ordered) - 1, KEPT_SCORES).round().astype(int)
    return [ordered[place] for place in places]
