"""What further drafts of a prompt are expected to gain, from random futures.

Scores to come are drawn from what is known of the prompt, and the exact selection is run on each draw:
the gain is the mean over the draws of how much the best group's spread grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpu_runtime.exploration.score_history import Prediction
from gpu_runtime.exploration.selection import Criterion, max_spread

_LOOK_AHEAD = (2, 4, 8, 16)
"""Further drafts of a prompt whose gain is computed; in between the best rate counts."""

FARTHEST = _LOOK_AHEAD[-1]
"""Most further drafts whose gain can be asked for."""

_OUTCOMES = 128
"""Random futures that a gain is averaged over."""


class OutcomeSamples:
    """What a prompt's drafts to come may score: random draws from what is known of it.

    Args:
        judged: scores of its drafts so far.
        prediction: what earlier iterations say of its next score.
        group_size: seeds to keep, G.
        criterion: what makes a group good.
        key: numbers that make the draws; prompts that are compared share them, so that none is preferred
            for its uniforms.
        most: further drafts that will be asked about.
    """

    def __init__(
        self,
        judged: Sequence[float],
        prediction: Prediction,
        group_size: int,
        criterion: Criterion,
        key: tuple[int, ...],
        most: int,
    ) -> None:
        self._judged = np.array(judged)
        self._group = group_size
        self._criterion: Criterion = criterion
        values = np.concatenate([prediction.values, self._judged])
        weights = np.concatenate([prediction.weights, np.ones(len(self._judged))])
        self._draws = _drawn(values, weights, _uniforms(key, max(most, group_size)))

    def spread(self, further: int, bar: float = 0.0) -> float:
        """What to expect of the prompt after so many further drafts: its best group's spread, or `bar`.

        The better of the two is taken once the drafts have shown which it is. Where there are fewer than a
        group even then, untried seeds fill it up, and the choice is made without having seen them.
        """
        have = np.broadcast_to(self._judged, (_OUTCOMES, len(self._judged)))
        blind = len(self._judged) + further < self._group
        drawn = self._group - len(self._judged) if blind else further
        future = np.concatenate([have, self._draws[:, :drawn]], axis=1)
        found = max_spread(future, self._group, self._criterion)
        return max(float(found.mean()), bar) if blind else float(np.maximum(found, bar).mean())

    def rates(self, pending: int, most: int, bar: float) -> list[float]:
        """Expected gain in spread of each further draft, by draft, falling.

        Args:
            pending: drafts under way, which come before.
            most: further drafts, at most FARTHEST.
            bar: the spread that has to be exceeded to count.
        """
        # The drafts that make a group of what is there show for the first time what the prompt is worth.
        ahead = {*_LOOK_AHEAD, self._group - len(self._judged) - pending}
        within = [further for further in sorted(ahead) if 0 < further <= most] or [most]
        return falling_rates({further: self.spread(pending + further, bar) for further in (0, *within)})


def _drawn(values: np.ndarray, weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Drafts to come, shape of `uniforms`: each follows from what is known and from those drawn before it.

    Pólya's urn: a value drawn counts as one more draft of that value. So a future in which the first drafts
    fail expects less of the next ones, as the planner itself will; draws that did not would promise that
    patience is always rewarded.

    Args:
        values, weights: what is known, in drafts.
        uniforms: numbers in [0, 1), one row an outcome.
    """
    order = np.argsort(values, kind="stable")
    values, heights = values[order], np.cumsum(weights[order])
    drawn = np.empty(uniforms.shape)
    for place in range(uniforms.shape[1]):
        height = uniforms[:, place] * (heights[-1] + place)
        known = values[np.minimum(np.searchsorted(heights, height, side="right"), len(values) - 1)]
        earlier = np.clip((height - heights[-1]).astype(int), 0, max(0, place - 1))
        again = height >= heights[-1]
        drawn[:, place] = np.where(again, drawn[np.arange(len(drawn)), earlier], known) if place else known
    return drawn


def _uniforms(key: tuple[int, ...], drafts: int) -> np.ndarray:
    """Uniform numbers in [0, 1) for the sampled outcomes, shape (_OUTCOMES, drafts).

    Each draft's numbers are one from each of _OUTCOMES equal strata, in random order (stratified
    sampling): how often it succeeds varies little. The first drafts' are the same however many there are.
    """
    generator = np.random.Generator(np.random.Philox(list(key)))
    strata = np.tile(np.arange(_OUTCOMES), (drafts, 1))
    uniforms = [(generator.permutation(row) + generator.random(_OUTCOMES)) / _OUTCOMES for row in strata]
    return np.stack(uniforms, axis=1)


def falling_rates(curve: Mapping[int, float]) -> list[float]:
    """Gain of each next draft along the smallest concave curve above `curve` (drafts -> value).

    One draft may gain nothing where two gain much: what counts is the best rate that lies ahead.
    """
    rates: list[float] = []
    here = 0
    while here < max(curve):
        slopes = {there: (curve[there] - curve[here]) / (there - here) for there in curve if there > here}
        best = max(slopes, key=lambda there: (slopes[there], there))
        rates += [slopes[best]] * (best - here)
        here = best
    return rates
