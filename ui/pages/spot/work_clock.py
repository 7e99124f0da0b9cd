"""A time axis without the breaks: a run killed at night and resumed in the morning shows no night."""

from __future__ import annotations

import numpy as np

LONG_S = 30.0
"""Seconds without any device at work from which on it is a break; shorter ones stay visible."""


class WorkClock:
    """Seconds since the first of some intervals began, long breaks between them left out.

    Args:
        started_at: begins of at least one interval, Unix seconds.
        ended_at: their ends.
    """

    def __init__(self, started_at: np.ndarray, ended_at: np.ndarray) -> None:
        order = np.argsort(started_at)
        starts, reach = started_at[order], np.maximum.accumulate(ended_at[order])
        is_new = np.concatenate(([True], starts[1:] - reach[:-1] > LONG_S))
        self._begins = starts[is_new]
        self._ends = reach[np.concatenate((is_new[1:], [True]))]

    def elapsed_s(self, moments: np.ndarray) -> np.ndarray:
        """Each moment (Unix seconds) on this clock; one in a break is at the break."""
        worked = np.minimum(np.asarray(moments, dtype=float)[:, None], self._ends) - self._begins
        return np.clip(worked, 0.0, None).sum(axis=1)

    @property
    def total_s(self) -> float:
        """How long the axis is."""
        return float((self._ends - self._begins).sum())

    @property
    def breaks_s(self) -> np.ndarray:
        """Where on the axis time was left out."""
        return np.cumsum(self._ends - self._begins)[:-1]
