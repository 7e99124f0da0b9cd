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

_FUTURES = 64
"""Random futures that a gain is averaged over."""


class Futures:
    """What a prompt's drafts to come may score: random draws from what is known of it.

    Args:
        judged: scores of its drafts so far.
        prediction: what earlier iterations say of its next score.
        group_size: seeds to keep, G.
        criterion: what makes a group good.
        key: numbers that make the draws these futures' own.
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
        generator = np.random.Generator(np.random.Philox(list(key)))
        self._draws = generator.choice(values, (_FUTURES, max(most, group_size)), p=weights / weights.sum())

    def spread(self, further: int, bar: float = 0.0) -> float:
        """Mean of the best group's spread, or of `bar` where that is more, after so many further drafts."""
        # Where there are fewer than a group, seeds that nobody tried fill it up.
        drawn = max(further, self._group - len(self._judged))
        have = np.broadcast_to(self._judged, (_FUTURES, len(self._judged)))
        future = np.concatenate([have, self._draws[:, :drawn]], axis=1)
        return float(np.maximum(max_spread(future, self._group, self._criterion), bar).mean())

    def rates(self, pending: int, most: int, bar: float) -> list[float]:
        """Expected gain in spread of each further draft, by draft, falling.

        Args:
            pending: drafts under way, which come before.
            most: further drafts, at most FARTHEST.
            bar: the spread that has to be exceeded to count.
        """
        ahead = [further for further in _LOOK_AHEAD if further <= most] or [most]
        return falling_rates({further: self.spread(pending + further, bar) for further in (0, *ahead)})


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
