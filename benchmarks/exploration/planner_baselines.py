"""Simple allocations of drafts that the planner is compared with; no run uses them.

Each decides how many drafts the prompts get in a round, from what the planner would know then: the scores of
all rounds but the last, which is judged while this one is planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_FIRST = 2
"""First drafts of each prompt for the baselines that rank by deviation, where the budget allows."""

_OPTIMISM = 0.5
"""Weight of a UCB's second term, over the deviation of the first scores."""

_STAGES = 4
"""Stages of successive halving."""


@dataclass
class Position:
    """What an allocation knows.

    Attributes:
        counts: drafts of each prompt so far, (P,).
        judged: of these, those of all rounds but the last, (P,).
        variance: unbiased, of each prompt's judged scores; 0 below two, (P,).
        pooled: variance of all first scores together.
        candidates: most drafts of a prompt.
        budget: drafts of all rounds together.
        generator: for what is random.
    """

    counts: np.ndarray
    judged: np.ndarray
    variance: np.ndarray
    pooled: float
    candidates: int
    budget: int
    generator: np.random.Generator


Allocation = Callable[[Position, int], np.ndarray]


def play(
    table: np.ndarray, budget: int, rounds: int, allocate: Allocation, generator: np.random.Generator
) -> np.ndarray:
    """Spend a budget on a table of scores; the drafts of each prompt.

    Args:
        table: every candidate's score, (prompts, candidates).
        budget: drafts.
        rounds: that it is divided into.
        allocate: the drafts of each prompt in a round.
        generator: for what is random.
    """
    counts = judged = np.zeros(len(table), dtype=int)
    columns = np.arange(table.shape[1])
    while (left := budget - int(counts.sum())) > 0:
        seen = columns < judged[:, None]
        mean = np.where(seen, table, 0).sum(axis=1) / np.maximum(judged, 1)
        squares = np.where(seen, (table - mean[:, None]) ** 2, 0).sum(axis=1)
        first = table[seen & (columns < _FIRST)]
        pooled = float(first.var()) if len(first) else 0.0
        variance = squares / np.maximum(judged - 1, 1)
        position = Position(counts, judged, variance, pooled, table.shape[1], budget, generator)
        judged, counts = counts, counts + allocate(position, min(left, math.ceil(budget / rounds)))
    return counts


def even(position: Position, drafts: int) -> np.ndarray:
    """The same number for every prompt."""
    return _level(position.counts, np.ones(len(position.counts), dtype=bool), position.candidates, drafts)


def upper_confidence(position: Position, drafts: int) -> np.ndarray:
    """UCB on the sample deviation: deviation plus a term that falls with the prompt's drafts."""

    def index(counts: np.ndarray) -> np.ndarray:
        doubt = np.sqrt(2 * np.log(counts.sum()) / counts)
        return np.sqrt(position.variance) + _OPTIMISM * math.sqrt(position.pooled) * doubt

    return _one_by_one(position, drafts, index)


def thompson(position: Position, drafts: int) -> np.ndarray:
    """Thompson sampling of the variance, with a prior of two drafts at the pooled one."""

    def index(counts: np.ndarray) -> np.ndarray:
        freedom = np.maximum(position.judged - 1, 0)
        scale = 2 * max(position.pooled, 1e-9) + freedom * position.variance
        return scale / position.generator.chisquare(2 + freedom)

    return _one_by_one(position, drafts, index)


def halving(position: Position, drafts: int) -> np.ndarray:
    """Successive halving: in each stage the half of largest variance goes on."""
    spent = int(position.counts.sum())
    stage = min(_STAGES - 1, spent * _STAGES // position.budget)
    kept = max(1, len(position.counts) >> stage)
    alive = np.zeros(len(position.counts), dtype=bool)
    alive[np.argsort(-position.variance, kind="stable")[:kept]] = True
    wanted = _level(position.counts, alive, position.candidates, drafts)
    rest = drafts - int(wanted.sum())
    return wanted + _level(position.counts + wanted, ~alive, position.candidates, rest)


BASELINES: dict[str, Allocation] = {
    "even": even,
    "ucb": upper_confidence,
    "thompson": thompson,
    "halving": halving,
}


def _one_by_one(position: Position, drafts: int, index: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """First drafts of all prompts; then each draft where the index is highest, the ones under way counted."""
    first = min(_FIRST, position.budget // len(position.counts))
    counts = position.counts.copy()
    for _ in range(drafts):
        fewest = int(counts.argmin())
        if counts[fewest] < first:
            counts[fewest] += 1
        else:
            value = np.where(counts < position.candidates, index(np.maximum(counts, 1)), -np.inf)
            counts[int(value.argmax())] += 1
    return counts - position.counts


def _level(counts: np.ndarray, among: np.ndarray, candidates: int, drafts: int) -> np.ndarray:
    """Drafts one by one, each of the prompt with the fewest."""
    filled = counts.copy()
    for _ in range(drafts):
        free = np.where(among & (filled < candidates), filled, candidates)
        if free.min() == candidates:
            break
        filled[int(free.argmin())] += 1
    return filled - counts
