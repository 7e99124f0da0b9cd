"""Do seeds keep their rank when the weights move on? Stale against fresh scores of the same seeds.

Ranks are compared within each prompt, because seeds compete within a prompt only: easy and hard
prompts would make any two policies look alike. Prompts count by the spread of their ranks, so one
whose candidates all score the same says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_runtime.exploration.selection import Criterion, select


@dataclass(frozen=True)
class Agreement:
    """How far stale and fresh scores agree.

    Attributes:
        pairs: candidates compared.
        spearman: rank correlation in [-1, 1], ties at their average rank; None where nothing differs.
        kendall: tau-b, in [-1, 1]; None where nothing differs.
        rank_sums: products of stale and fresh ranks, their squares, each summed: what several iterations'
            agreement is put together from.
        kept_overlap: share of the kept seeds that fresh scores would keep too; None where no prompt
            has more candidates than are kept.
    """

    pairs: int
    spearman: float | None
    kendall: float | None
    kept_overlap: float | None
    rank_sums: tuple[float, float, float]


Pairs = Mapping[int, tuple[Sequence[float], Sequence[float]]]
"""Stale and fresh scores of the same candidates, by prompt."""


def compare(pairs: Pairs, group_size: int, criterion: Criterion = "variance") -> Agreement:
    """Agreement of stale and fresh scores, within prompts.

    Args:
        pairs: as many stale as fresh scores of each prompt, in the order of their seeds.
        group_size: seeds kept of a prompt.
        criterion: how they are chosen.
    """
    arrays = [(np.asarray(stale, float), np.asarray(fresh, float)) for stale, fresh in pairs.values()]
    ranks = [(_ranks(stale), _ranks(fresh)) for stale, fresh in arrays]
    signs = [(_signs(stale), _signs(fresh)) for stale, fresh in arrays]
    overlaps = [
        len(_kept(stale, group_size, criterion) & _kept(fresh, group_size, criterion)) / group_size
        for stale, fresh in arrays
        if len(stale) > group_size
    ]
    return Agreement(
        pairs=sum(len(stale) for stale, _ in arrays),
        spearman=_correlation(ranks),
        kendall=_correlation(signs),
        kept_overlap=float(np.mean(overlaps)) if overlaps else None,
        rank_sums=_sums(ranks),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks minus their mean; equal values share the average of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    average = last - (counts - 1) / 2
    return average[inverse] - (len(values) + 1) / 2


def _signs(values: np.ndarray) -> np.ndarray:
    """Which of each two candidates is the better one: 1, 0 or -1, for all pairs."""
    first, second = np.triu_indices(len(values), k=1)
    return np.sign(values[first] - values[second])


def _correlation(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Sum of products over the root of the products of sums of squares."""
    product, first, second = _sums(pairs)
    return product / (first * second) ** 0.5 if first * second > 0 else None


def _sums(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    return (
        sum(float(a @ b) for a, b in pairs),
        sum(float(a @ a) for a, _ in pairs),
        sum(float(b @ b) for _, b in pairs),
    )


def _kept(values: np.ndarray, group_size: int, criterion: Criterion) -> set[int]:
    return set(select(values, group_size, criterion).indices)
