"""What drafts of earlier iterations say of a prompt's next scores. Windowed: the policy moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

KEPT_SCORES = 32
"""Most scores remembered of a prompt, spread over those that were seen."""

_MOST_WEIGHT = 8.0
"""A prompt's past counts as at most so many drafts of today."""

_COMMON_WEIGHT = 1.0
"""All prompts' scores together count as one draft of each prompt: nothing is impossible."""

_COMMON_ITERATIONS = 4
"""Iterations whose scores make up what is common."""


@dataclass(frozen=True)
class Prediction:
    """A distribution of a prompt's next score: values and their weights in drafts."""

    values: np.ndarray
    weights: np.ndarray


class ScoreHistory:
    """Scores by prompt, forgotten with a half-life in iterations.

    Args:
        half_life: iterations after which a prompt's scores count half.
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._of_prompt: dict[int, tuple[int, list[float]]] = {}
        self._recent: list[list[float]] = []
        self._newest: int | None = None

    def add(self, iteration: int, scores: Mapping[int, Sequence[float]]) -> None:
        """Note the scores of an iteration's drafts, by prompt; a prompt's older ones give way.

        An iteration's second scores, where it was drafted anew, come in the place of its first.
        """
        everything: list[float] = []
        for prompt, values in scores.items():
            if values:
                self._of_prompt[prompt] = (iteration, _spread(values))
                everything += _spread(values)
        if everything:
            before = self._recent[:-1] if iteration == self._newest else self._recent
            self._recent = [*before, everything][-_COMMON_ITERATIONS:]
            self._newest = iteration

    def predict(self, prompt: int, iteration: int) -> Prediction:
        """What a draft of this prompt may score, from its own past and from what is common."""
        # Before any score: success and failure are equally likely.
        common = [value for values in self._recent for value in values] or [0.0, 1.0]
        values, weights = list(common), [_COMMON_WEIGHT / len(common)] * len(common)
        if prompt in self._of_prompt:
            seen, own = self._of_prompt[prompt]
            weight = min(len(own), _MOST_WEIGHT) * 0.5 ** ((iteration - seen) / self._half_life)
            values += own
            weights += [weight / len(own)] * len(own)
        return Prediction(np.array(values), np.array(weights))

    def state(self) -> dict[str, Any]:
        """JSON values, for a checkpoint."""
        return {
            "of_prompt": [[prompt, seen, values] for prompt, (seen, values) in self._of_prompt.items()],
            "recent": self._recent,
            "newest": self._newest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._of_prompt = {prompt: (seen, list(values)) for prompt, seen, values in state["of_prompt"]}
        self._recent = [list(values) for values in state["recent"]]
        # Earlier checkpoints do not say.
        self._newest = state.get("newest")


def _spread(values: Sequence[float]) -> list[float]:
    """At most KEPT_SCORES of the values, evenly from the lowest to the highest."""
    ordered = sorted(values)
    if len(ordered) <= KEPT_SCORES:
        return ordered
    places = np.linspace(0, len(ordered) - 1, KEPT_SCORES).round().astype(int)
    return [ordered[place] for place in places]
