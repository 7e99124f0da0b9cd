"""The logical shards of an update, and the fixed tree that joins their gradients.

An update's rows are cut into batches, numbered in order. Batch j belongs to shard j mod K. A shard is a sum
from zero over its batches in order; shards are joined in pairs, in a binary tree that depends only on K. So
an update has the same bits whichever devices compute its shards, and another device can recompute a lost
shard from the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpu_runtime.learning.objectives.protocol import BatchTerms, Objective, Row, TrainingSample

if TYPE_CHECKING:  # the driver joins sums without it
    import torch

Span = tuple[int, int]
"""A node of the tree: the shards from the first number up to, but excluding, the second."""

Batch = tuple[int, Sequence[Row], float]
"""A batch: its shard, its rows and the weight of each."""

NOTHING = BatchTerms(0.0, 0.0, 0.0, 0.0)


def summed(first: BatchTerms, second: BatchTerms) -> BatchTerms:
    """Return the sums of two results, and the larger deviation."""
    # max() would swallow a NaN, which must reach the check.
    off = second.deviation if math.isnan(second.deviation) else max(first.deviation, second.deviation)
    return BatchTerms(*map(sum, zip(first, second, strict=True)))._replace(deviation=off)


@dataclass(frozen=True)
class ShardSum:
    """A sum over the rows of one or more shards.

    Attributes:
        gradient: gradient of each weight by name, float32: tensors on a device, arrays in transit between
            devices. A weight that no row reached is missing.
        terms: sums of the rows' results.
    """

    gradient: Mapping[str, Any]
    terms: BatchTerms

    def plus(self, other: ShardSum) -> ShardSum:
        """Return the sum of both; adding two float32 numbers gives the same bits on every device."""
        mine, others = self.gradient, other.gradient
        both = {name: mine[name] + others[name] for name in mine.keys() & others.keys()}
        return ShardSum({**mine, **others, **both}, summed(self.terms, other.terms))

    def as_arrays(self) -> ShardSum:
        """Return the sum as arrays, to send it."""
        return ShardSum({name: value.cpu().numpy() for name, value in self.gradient.items()}, self.terms)


def joined(parts: Mapping[Span, ShardSum], span: Span) -> ShardSum:
    """Return a node's sum from nodes below it that cover all its shards."""
    if span in parts:
        return parts[span]
    left, right = _halves(span)
    return joined(parts, left).plus(joined(parts, right))


def nodes_of(shards: Collection[int], span: Span) -> Iterator[Span]:
    """Yield the largest nodes below one whose shards are all among these."""
    if all(shard in shards for shard in range(*span)):
        yield span
    elif span[1] - span[0] > 1:
        for half in _halves(span):
            yield from nodes_of(shards, half)


def _halves(span: Span) -> tuple[Span, Span]:
    """Return both children of a node; the left has the largest possible power of two of shards."""
    first, stop = span
    middle = first + 2 ** ((stop - first - 1).bit_length() - 1)
    return (first, middle), (middle, stop)


def shares(shards: Sequence[int], devices: int) -> list[Sequence[int]]:
    """Return consecutive shards for each device, divided as evenly as possible."""
    ends = [len(shards) * number // devices for number in range(devices + 1)]
    return [shards[first:stop] for first, stop in pairwise(ends)]


class Batches:
    """Cuts rows into batches as they arrive; a process takes those of its shards.

    Processes that divide the weights (`together`) each take one batch per turn, because a batch needs all
    of them; a process without a batch computes one of weight 0.

    Args:
        size: rows of a batch.
        shards: number K of shards, or of processes that divide the weights.
        own: shards to take.
        together: True if every batch needs all processes.
    """

    def __init__(self, size: int, shards: int, own: Collection[int], together: bool = False) -> None:
        self._size, self._shards, self.own, self._together = size, shards, own, together
        self._turn = size * shards if together else size
        self._waiting: list[Row] = []
        self._cut = 0

    def add(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """Add rows, and yield own batches as soon as they are full."""
        self._waiting += rows
        while len(self._waiting) >= self._turn:
            turn = self._waiting[: self._turn]
            del self._waiting[: self._turn]
            yield from self._own_of(turn)

    def end(self) -> Iterator[Batch]:
        """Yield own batches of the remaining rows."""
        left, self._waiting = self._waiting, []
        if left:
            yield from self._own_of(left)

    def _own_of(self, rows: Sequence[Row]) -> Iterator[Batch]:
        found = False
        for first in range(0, len(rows), self._size):
            shard = self._cut % self._shards
            self._cut += 1
            if shard in self.own:
                found = True
                yield shard, rows[first : first + self._size], 1.0
        if self._together and not found:
            yield next(iter(self.own)), rows[: self._size], 0.0


class Accumulation:
    """The sums of an update's shards in one process, computed batch by batch while samples arrive.

    The last computed shard's gradient is in the weights; those of other shards are kept aside.

    Args:
        weights: trained weights by name; none of them has a gradient yet.
    """

    def __init__(
        self, objective: Objective, weights: Mapping[str, torch.nn.Parameter], batches: Batches
    ) -> None:
        self._objective, self._weights, self._batches = objective, weights, batches
        self._terms = dict.fromkeys(batches.own, NOTHING)
        self._gradients: dict[int, dict[str, torch.Tensor]] = {shard: {} for shard in batches.own}
        self._current = -1

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add samples, and compute batches as soon as they are full."""
        for batch in self._batches.add(self._objective.rows(samples)):
            self._compute(*batch)

    def take(self, shards: Collection[int]) -> dict[Span, ShardSum]:
        """Compute the remaining rows, and return each shard's sum once."""
        for batch in self._batches.end():
            self._compute(*batch)
        self._change_to(-1)
        chosen = [shard for shard in shards if shard in self._terms]
        return {
            (shard, shard + 1): ShardSum(self._gradients.pop(shard), self._terms.pop(shard))
            for shard in chosen
        }

    def _compute(self, shard: int, rows: Sequence[Row], weight: float) -> None:
        self._change_to(shard)
        terms = self._objective.backward(rows, weight)
        if weight:
            self._terms[shard] = summed(self._terms[shard], terms)

    def _change_to(self, shard: int) -> None:
        """Put a shard's gradient into the weights and the current one aside; -1 means none."""
        if shard == self._current:
            return
        found = {name: weight.grad for name, weight in self._weights.items() if weight.grad is not None}
        if self._current in self._gradients:
            self._gradients[self._current] = found
        self._current = shard
        for name, weight in self._weights.items():
            weight.grad = self._gradients.get(shard, {}).get(name)
