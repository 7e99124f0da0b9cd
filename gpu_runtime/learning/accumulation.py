"""The gradient of one update, added up batch by batch while its samples still come.

Rows are cut into batches in the order in which they come, whatever comes with what. So an update whose
samples come a prompt group at a time has the bits of one whose samples come at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpu_runtime.learning.objectives.protocol import BatchTerms, Objective, Row, TrainingSample


class Accumulation:
    """Sums over the rows of an update; gradients lie in the weights.

    Several processes take turns with the batches: process r of n computes every n-th one from the r-th on.
    Each computes as many, as a batch needs all of them; one that has none left computes one that weighs
    nothing.

    Args:
        objective: that the rows are of.
        batch_size: rows of a batch.
        rank: number of this process.
        processes: how many there are.

    Attributes:
        rows: that have come, of all processes' batches.
        terms: sums over the rows that this process has computed; the largest deviation among them.
    """

    def __init__(self, objective: Objective, batch_size: int, rank: int = 0, processes: int = 1) -> None:
        self._objective = objective
        self._size, self._rank, self._processes = batch_size, rank, processes
        self._waiting: list[Row] = []
        self.rows = 0
        self.terms = BatchTerms(0.0, 0.0, 0.0, 0.0)

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Take in samples, and compute what makes whole batches of all processes."""
        rows = self._objective.rows(samples)
        self.rows += len(rows)
        self._waiting += rows
        turn = self._size * self._processes
        while len(self._waiting) >= turn:
            self._compute(self._waiting[:turn])
            del self._waiting[:turn]

    def end(self) -> None:
        """Compute what is left."""
        left, self._waiting = self._waiting, []
        if left:
            self._compute(left)

    def _compute(self, rows: Sequence[Row]) -> None:
        """Compute this process's batch among those of all."""
        own = rows[self._rank * self._size :][: self._size]
        if not own:
            self._objective.backward(rows[: self._size], 0.0)
            return
        terms, sums = self._objective.backward(own, 1.0), self.terms
        # max() would swallow a NaN, which must reach the check.
        off = terms.deviation if math.isnan(terms.deviation) else max(sums.deviation, terms.deviation)
        self.terms = BatchTerms(*(map(sum, zip(sums, terms, strict=True))))._replace(deviation=off)
