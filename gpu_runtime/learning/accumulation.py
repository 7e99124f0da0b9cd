"""The gradient of one update, accumulated batch by batch while its samples still arrive.

Rows are cut into batches in the order in which they arrive, however they are grouped. So an update whose
samples arrive one prompt group at a time has the same bits as one whose samples arrive all at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu_runtime.learning.objectives.protocol import BatchTerms, Objective, Row, TrainingSample


class Accumulation:
    """Sums over the rows of an update; gradients are in the weights.

    Several processes take turns with the batches: process r of n computes every n-th one from the r-th on.
    Each computes equally many, as a batch needs all processes; one that has none left computes a batch of
    weight 0.

    Args:
        objective: objective that the rows belong to.
        batch_size: rows per batch.
        rank: number of this process.
        processes: number of processes.

    Attributes:
        rows: number of rows that have arrived, in all processes' batches.
        terms: sums over the rows that this process has computed, and the largest deviation among them.
    """

    def __init__(self, objective: Objective, batch_size: int, rank: int = 0, processes: int = 1) -> None:
        self._objective = objective
        self._size, self._rank, self._processes = batch_size, rank, processes
        self._waiting: list[Row] = []
        self.rows = 0
        self.terms = BatchTerms(0.0, 0.0, 0.0, 0.0)

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add samples, and compute batches as soon as every process has a whole one."""
        rows = self._objective.rows(samples)
        self.rows += len(rows)
        self._waiting += rows
        turn = self._size * self._processes
        while len(self._waiting) >= turn:
            self._compute(self._waiting[:turn])
            del self._waiting[:turn]

    def end(self) -> None:
        """Compute the remaining rows."""
        left, self._waiting = self._waiting, []
        if left:
            self._compute(left)

    def _compute(self, rows: Sequence[Row]) -> None:
        """Compute this process's batch among those of all processes."""
        own = rows[self._rank * self._size :][: self._size]
        if not own:
            self._objective.backward(rows[: self._size], 0.0)
            return
        terms, sums = self._objective.backward(own, 1.0), self.terms
        # max() would swallow a NaN, which must reach the check.
        off = terms.deviation if math.isnan(terms.deviation) else max(sums.deviation, terms.deviation)
        self.terms = BatchTerms(*(map(sum, zip(sums, terms, strict=True))))._replace(deviation=off)
