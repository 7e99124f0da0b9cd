"""The expected gain from further drafts of each prompt: exact selection on random outcomes.

The value of a prompt with m drafts is the expected spread of its best group over random outcomes of the
drafts not judged yet. One draft may gain nothing where ten gain much (before a group is complete, or if
successes are rare), so values are computed up to the last candidate, and gains are read off the smallest
concave curve above them.

Shapes: P prompts, R random outcomes, M totals of drafts, N candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_OUTCOMES = 16384
"""Random outcomes for all prompts together."""

_FEWEST, _MOST = 16, 64
"""Limits of the number of a prompt's random outcomes."""

_AHEAD = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)
"""Draft totals at which values are computed, as fractions of the way from a group to all candidates."""


@dataclass(frozen=True)
class Segments:
    """Segments of the concave curves, by falling rate; ties go to the earlier prompt.

    Attributes:
        prompt: index of the prompt, integers.
        rate: gain in spread per draft.
        drafts: length in drafts, integers.
    """

    prompt: np.ndarray
    rate: np.ndarray
    drafts: np.ndarray


class ValueCurves:
    """The expected spread of each prompt's best group, as a function of its number of drafts.

    Args:
        draws: draws scores of future drafts, such as `ScoreModel.draws`.
        judged: each prompt's scores so far.
        group_size: seeds to keep, G.
        candidates: most drafts per prompt, N.
        key: numbers that seed the random outcomes, which all prompts share, so chance prefers none.
    """

    def __init__(
        self,
        draws: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
        judged: Sequence[np.ndarray],
        group_size: int,
        candidates: int,
        key: tuple[int, ...],
    ) -> None:
        self._group = group_size
        self._totals = totals_ahead(group_size, candidates)
        self._known = np.array([len(scores) for scores in judged])
        self._now = np.full(len(judged), np.nan)
        outcomes = int(np.clip(_OUTCOMES // max(1, len(judged)), _FEWEST, _MOST))
        found = draws(*random_outcomes(key, outcomes, int(self._totals[-1])))
        for count in np.unique(self._known):
            alike = np.flatnonzero(self._known == count)
            scores = np.stack([judged[int(place)] for place in alike])
            found[alike, :, :count] = scores[:, None]
            if count >= group_size:
                self._now[alike] = best_spread(scores, group_size)
        self._found = [np.zeros(found.shape[:2]) for _ in self._totals]
        for spread, total in zip(self._found, self._totals, strict=True):
            # Totals that a prompt has already passed are unused.
            ahead = np.flatnonzero(self._known < total)
            spread[ahead] = best_spread(found[ahead, :, :total], group_size)

    def now(self) -> np.ndarray:
        """Return the expected spread of each prompt without further drafts, (P,).

        A prompt with fewer judged drafts than a group is filled up with untried seeds.
        """
        return np.where(self._known >= self._group, self._now, self._found[0].mean(axis=1))

    def segments(self, issued: np.ndarray, bars: np.ndarray) -> Segments:
        """Return the gain of further drafts, as segments.

        Args:
            issued: drafts of each prompt so far, judged or under way, at most N, (P,).
            bars: spread that each prompt must exceed to count, (P,).
        """
        totals, known = self._totals, self._known
        values = np.stack([np.maximum(found, bars[:, None]).mean(axis=1) for found in self._found], axis=1)
        # Without a whole group, prompts are chosen before their scores are known.
        blind = np.maximum(self._found[0].mean(axis=1), bars)
        rows, later = np.arange(len(issued)), np.searchsorted(totals, issued)
        earlier = np.maximum(later - 1, 0)
        # Interpolate values linearly between totals, starting at the known one.
        passed = (totals[earlier] <= known) & (known >= self._group)
        left = np.where(passed, known, totals[earlier])
        height = np.where(passed, np.maximum(self._now, bars), values[rows, earlier])
        part = (issued - left) / np.maximum(totals[later] - left, 1)
        here = height + np.clip(part, 0.0, 1.0) * (values[rows, later] - height)
        here = np.where(issued < self._group, blind, here)
        return _concave(issued, here, totals, values)


def best_spread(scores: np.ndarray, size: int) -> np.ndarray:
    """Return the largest variance of `size` scores along the last axis, which holds at least `size`.

    Args:
        scores: scores of candidates, (..., candidates).
        size: size of the group to choose.
    """
    # The best group is a prefix and a suffix of the sorted scores: see `selection`.
    ordered = np.sort(scores, axis=-1)
    ordered -= ordered.mean(axis=-1, keepdims=True)
    low = np.ascontiguousarray(np.moveaxis(ordered[..., :size], -1, 0))
    high = np.ascontiguousarray(np.moveaxis(ordered[..., -size:], -1, 0))
    # From the G highest to the G lowest, exchanging one at a time.
    total, squares = high.sum(axis=0), (high**2).sum(axis=0)
    best = _spread(total, squares, size)
    for taken, given in zip(low, high, strict=True):
        total += taken - given
        squares += taken**2 - given**2
        np.maximum(best, _spread(total, squares, size), out=best)
    return best


def _spread(total: np.ndarray, squares: np.ndarray, size: int) -> np.ndarray:
    """Return the variance of `size` scores, given their sum and sum of squares."""
    return squares / size - (total / size) ** 2


def totals_ahead(group: int, candidates: int) -> np.ndarray:
    """Return the draft totals at which a prompt's value is computed, ascending from a group's size."""
    ahead = max(0, candidates - group)
    return np.unique(np.round([group + part * ahead for part in _AHEAD]).astype(int))


def random_outcomes(
    key: tuple[int, ...], outcomes: int, drafts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `ScoreModel.draws`'s arguments: R ascending uniforms; a logit and a uniform per draft.

    Each draft's R numbers come from R equal strata, in random order (a Latin hypercube), which leaves
    little of its success rate to chance.

    Args:
        outcomes: number R of outcomes.
        drafts: number N of drafts.
    """
    generator = np.random.Generator(np.random.Philox(list(key)))

    def stratified() -> np.ndarray:
        strata = np.tile(np.arange(outcomes), (drafts, 1))
        strata = np.stack([generator.permutation(row) for row in strata], axis=1)
        return np.clip((strata + generator.random(strata.shape)) / outcomes, 1e-9, 1 - 1e-9)

    uniforms = stratified()
    return (np.arange(outcomes) + 0.5) / outcomes, np.log(uniforms) - np.log1p(-uniforms), stratified()


def _concave(start: np.ndarray, here: np.ndarray, totals: np.ndarray, values: np.ndarray) -> Segments:
    """Return the smallest concave curves above (start, here) and the points (totals, values) right of it."""
    rows = np.arange(len(start))
    at, height = start.astype(float), here.astype(float)
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for _ in totals:
        ahead = totals[None, :] > at[:, None]
        width = np.where(ahead, totals[None, :] - at[:, None], 1.0)
        slopes = np.where(ahead, (values - height[:, None]) / width, -np.inf)
        best = slopes.argmax(axis=1)
        rising = slopes[rows, best] > 0
        if not rising.any():
            break
        rate = np.where(rising, slopes[rows, best], 0.0)
        parts.append((rows[rising], rate[rising], width[rows, best][rising].astype(int)))
        at = np.where(rising, totals[best], totals[-1])
        height = values[rows, best]
    if not parts:
        return Segments(np.zeros(0, int), np.zeros(0), np.zeros(0, int))
    prompt, rate, drafts = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((np.arange(len(prompt)), prompt, -rate))
    return Segments(prompt[order], rate[order], drafts[order])
