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

_COMMON_WEIGHT = 4.0
"""What all prompts' scores together count as, in drafts of each prompt, until that has been measured."""

_LEAST_COMMON, _MOST_COMMON = 1.0, 16.0
"""Limits of it once measured: nothing is impossible, and no prompt is like all others for ever."""

_COMMON_ITERATIONS = 4
"""Iterations whose scores make up what is common."""


_NO_SCORES = (0.0, 1.0)
"""Before any score success and failure are equally likely."""


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

    def __init__(self, half_life: float = 10.0) -> None:
        self._half_life = half_life
        self._of_prompt: dict[int, tuple[int, list[float]]] = {}
        self._recent: list[list[float]] = []
        self._newest: int | None = None
        self._common = np.array(_NO_SCORES)
        self._common_weight = _COMMON_WEIGHT

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
            self._weigh()

    def predict(self, prompt: int, iteration: int) -> Prediction:
        """What a draft of this prompt may score, from its own past and from what is common."""
        common = self._common
        weights = np.full(len(common), self._common_weight / len(common))
        if prompt not in self._of_prompt:
            return Prediction(common, weights)
        seen, own = self._of_prompt[prompt]
        weight = min(len(own), _MOST_WEIGHT) * 0.5 ** ((iteration - seen) / self._half_life)
        values = np.concatenate([common, own])
        return Prediction(values, np.concatenate([weights, np.full(len(own), weight / len(own))]))

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
        self._weigh()

    def _weigh(self) -> None:
        """Gather the scores of the last iterations, and measure how alike their prompts are."""
        # All prompts' predictions have them in common: a rollout waits while these are made.
        self._common = np.array([value for values in self._recent for value in values] or _NO_SCORES)
        newest = self._newest or 0
        groups = [own for seen, own in self._of_prompt.values() if newest - seen < _COMMON_ITERATIONS]
        self._common_weight = common_weight(groups)


def common_weight(groups: Sequence[Sequence[float]]) -> float:
    """How many of a prompt's own drafts the scores of all prompts are worth: how alike prompts are.

    A prompt's mean score, as predicted from n drafts, is best drawn towards the mean of all by
    w / (w + n), where w is the variance of a prompt's scores over the variance between prompts' means
    (shrinkage as in one-way analysis of variance with random effects, whose moments estimate both). A single
    good draft of a prompt says little where all prompts succeed alike rarely.

    Args:
        groups: each prompt's scores.

    Returns:
        w, from 1 to 16; 4 where the scores do not tell.
    """
    counts = np.array([len(group) for group in groups], dtype=float)
    total, prompts = counts.sum(), len(groups)
    if prompts < 2 or total <= prompts:
        return _COMMON_WEIGHT
    means = np.array([np.mean(group) for group in groups])
    within = sum(float(((np.array(g) - m) ** 2).sum()) for g, m in zip(groups, means, strict=True))
    within /= total - prompts
    overall = float((counts * means).sum() / total)
    between = float((counts * (means - overall) ** 2).sum()) / (prompts - 1)
    size = (total - (counts**2).sum() / total) / (prompts - 1)
    variance = max(0.0, (between - within) / size)
    if within == 0:
        return _LEAST_COMMON if variance else _COMMON_WEIGHT
    return float(np.clip(within / variance, _LEAST_COMMON, _MOST_COMMON)) if variance else _MOST_COMMON


def _spread(values: Sequence[float]) -> list[float]:
    """At most KEPT_SCORES of the values, evenly from the lowest to the highest."""
    ordered = sorted(values)
    if len(ordered) <= KEPT_SCORES:
        return ordered
    places = np.linspace(0, len(ordered) - 1, KEPT_SCORES).round().astype(int)
    return [ordered[place] for place in places]
