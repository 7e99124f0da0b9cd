"""The contrast of random prompt groups, and of chosen ones, predicted from the scores so far.

Scores of random prompts are drawn from the planner's score model (`score_model`), and the exact selection
runs on them. All prompts get equally many drafts, so the planner's better aim is not credited.

Shapes: R random prompts, N drafts of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_runtime.exploration.prediction.expected_gain import best_spread, random_outcomes, totals_ahead
from gpu_runtime.exploration.prediction.score_model import ScoreModel
from gpu_runtime.exploration.signal_rate import Contrast

_PROMPTS = 1024
"""Random prompts over which contrast is averaged."""

_MOST_CANDIDATES = 96
"""Most candidates drawn per prompt; more hardly add contrast."""

_MOST_GROUPS = 256
"""Most prompts to which the model is fitted."""

_EQUAL = 1e-8
"""Largest deviation of a group without contrast."""


class ExpectedContrast:
    """The contrast of groups as a function of an iteration's drafts.

    Args:
        scores: scores of random samples, prompt by prompt; at least one.
        group_size: samples of a group, G.
        prompts: prompt groups to train on, P.
        explored: prompt groups to choose them from; at least P.
        candidates: most drafts of a prompt, N; at least G.
        key: numbers that seed the random scores.

    Attributes:
        random: contrast of unchosen groups.
    """

    def __init__(
        self,
        scores: Sequence[Sequence[float]],
        group_size: int,
        prompts: int,
        explored: int,
        candidates: int,
        key: tuple[int, ...],
    ) -> None:
        self._explored = explored
        most = max(group_size, min(candidates, _MOST_CANDIDATES))
        model = ScoreModel([np.zeros(0)], [((), 0.0)], list(scores)[-_MOST_GROUPS:])
        drawn_RN = model.draws(*random_outcomes(key, _PROMPTS, most))[0]
        # Outcomes are sorted by success; after a shuffle, any subset is a set of random prompts.
        if explored > _PROMPTS:  # so many that only the share of the best matters
            prompts, explored = max(1, round(prompts / explored * _PROMPTS)), _PROMPTS
        whole = _PROMPTS // explored * explored
        drawn_RN = drawn_RN[np.random.Generator(np.random.Philox(list(key))).permutation(_PROMPTS)[:whole]]
        self.random = _contrast(drawn_RN[:, :group_size].var(axis=1))
        totals = totals_ahead(group_size, most)
        found: list[Contrast] = []
        for total in totals:
            spread = best_spread(drawn_RN[:, :total], group_size).reshape(-1, explored)
            found.append(_contrast(np.sort(spread, axis=1)[:, explored - prompts :].ravel()))
        # With less than a group per prompt there is nothing to choose.
        self._drafts = np.array([0, *totals[:1] - 1, *totals], dtype=float)
        self._live = np.array([self.random.live] * 2 + [each.live for each in found])
        self._deviation = np.array([self.random.deviation] * 2 + [each.deviation for each in found])

    def chosen(self, drafts: float) -> Contrast:
        """Return the contrast of the groups chosen from this many drafts, interpolated linearly."""
        each = drafts / self._explored
        live, deviation = (np.interp(each, self._drafts, values) for values in (self._live, self._deviation))
        return Contrast(float(live), float(deviation))


def _contrast(variance: np.ndarray) -> Contrast:
    deviation = np.sqrt(np.maximum(variance, 0.0))
    live = deviation > _EQUAL
    return Contrast(float(live.mean()), float(deviation[live].mean()) if live.any() else 0.0)
