"""Shards of an update: the batches of each, the tree that joins them, and the same bits for any devices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runtime.learning.gradient_shards import (
    NOTHING,
    Accumulation,
    Batches,
    ShardSum,
    Span,
    joined,
    nodes_of,
    shares,
)
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.report import TrainingReport
from tests.tiny_run import OBJECTIVE_NAMES, TinyRun, tiny_config


def sum_of(value: float, **terms: float) -> ShardSum:
    return ShardSum({"w": np.array([value], np.float32)}, NOTHING._replace(loss=value, **terms))


def test_shards_join_two_by_two_in_float32():
    # 2**24 + 1 rounds to 2**24 in float32, so each order of these has another sum.
    values = [2.0**24, 1.0, 1.0, 1.0, 1.0, 1.0]
    parts: dict[Span, ShardSum] = {(n, n + 1): sum_of(value) for n, value in enumerate(values)}
    one, total = np.float32(1), joined(parts, (0, 6))
    by_hand = ((np.float32(2**24) + one) + (one + one)) + (one + one)
    assert by_hand == 2.0**24 + 4
    assert total.gradient["w"] == by_hand
    assert by_hand != reduce(np.add, np.array(values, np.float32)), "unlike one after another"
    assert total.terms.loss == sum(values)


@pytest.mark.parametrize(
    ("shards", "nodes"),
    [
        ({0, 1, 2, 3}, [(0, 4)]),
        ({0, 1, 2}, [(0, 2), (2, 3)]),
        ({1, 2}, [(1, 2), (2, 3)]),
        ({4}, [(4, 5)]),
        ({2, 3, 4}, [(2, 4), (4, 5)]),
        (set(range(5)), [(0, 5)]),
        (set(), []),
    ],
)
def test_a_device_returns_the_largest_nodes_of_its_shards(shards: set[int], nodes: list[Span]):
    assert list(nodes_of(shards, (0, 5))) == nodes


def test_what_one_part_lacks_is_nothing_and_a_deviation_that_is_no_number_stays_one():
    lacking = ShardSum({"v": np.float32(3)}, NOTHING._replace(deviation=float("nan")))
    for one, other in itertools.permutations((sum_of(2.0, deviation=0.5), lacking)):
        total = one.plus(other)
        assert total.gradient == {"w": np.array([2], np.float32), "v": np.float32(3)}
        assert total.terms.loss == 2.0 and total.terms.deviation != total.terms.deviation
    assert sum_of(1.0, deviation=0.25).plus(sum_of(1.0, deviation=0.5)).terms.deviation == 0.5


@pytest.mark.parametrize(
    ("devices", "expected"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 2]), (5, [0, 1, 1, 1, 1])]
)
def test_shards_are_divided_evenly_and_in_order(devices: int, expected: list[int]):
    found = shares(range(4), devices)
    assert list(map(len, found)) == expected
    assert list(itertools.chain(*found)) == [0, 1, 2, 3]


class CountingObjective:
    """Two rows a sample; notes what is computed, with which weight, and adds 10 ** n to the gradient."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.computed: list[tuple[list[Row], float]] = []

    def rows(self, samples: Sequence[Any]) -> list[Row]:
        return [Row(sample, place) for sample in samples for place in range(2)]

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        self.computed.append((list(rows), weight))
        (self.weight * weight * 10.0 ** len(self.computed)).sum().backward()
        return BatchTerms(weight * len(rows), 0.0, 0.0, 0.0)


def accumulated(
    parts: Sequence[Sequence[Any]], shards: int, own: Sequence[int], together: bool = False
) -> tuple[CountingObjective, dict[Span, ShardSum]]:
    objective: Any = CountingObjective()
    update = Accumulation(objective, {"w": objective.weight}, Batches(3, shards, own, together))
    for part in parts:
        update.add(part)
    sums = update.take(own)
    assert objective.weight.grad is None
    counted = sum(len(rows) for rows, weight in objective.computed if weight)
    assert sum(one.terms.loss for one in sums.values()) == counted
    return objective, sums


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_batches_do_not_depend_on_what_comes_with_what(shards: int, together: bool):
    samples = list("abcdefg")  # fourteen rows: four batches of three and one of two
    rows = CountingObjective().rows(samples)
    batches = [rows[first : first + 3] for first in range(0, len(rows), 3)]
    for cuts in itertools.combinations(range(1, 7), 2):
        parts = [samples[: cuts[0]], samples[cuts[0] : cuts[1]], samples[cuts[1] :]]
        everywhere = [accumulated(parts, shards, [shard], together)[0].computed for shard in range(shards)]
        weighed = [[rows for rows, weight in computed if weight] for computed in everywhere]
        assert [weighed[n % shards][n // shards] for n in range(5)] == batches
        assert sum(map(len, weighed)) == 5
        if together:
            assert len({len(computed) for computed in everywhere}) == 1, "each batch takes every process"


def test_each_shard_sums_its_own_gradients():
    objective, sums = accumulated(["abc", "defg"], 3, [0, 2])  # batches 0 to 4, of which 0, 2 and 3 are own
    assert [len(rows) for rows, _ in objective.computed] == [3, 3, 3]
    assert {span: float(one.gradient["w"]) for span, one in sums.items()} == {(0, 1): 1010.0, (2, 3): 100.0}
    _, sums = accumulated(["ab"], 3, [1, 2])
    assert sums[1, 2].gradient and not sums[2, 3].gradient, "a shard without a batch has none"


def test_whole_batches_are_computed_at_once_unless_each_takes_every_process():
    for together, computed in ((False, 1), (True, 0)):
        objective: Any = CountingObjective()
        batches = Batches(3, 2, [0], together)
        update: Any = Accumulation(objective, {"w": objective.weight}, batches)
        update.add("ab")
        assert len(objective.computed) == computed, "four rows are one batch, and less than two"


SHARDS = 4


class Several:
    """Trainers that share an iteration's shards as `gpu_runtime/fleet/trainers.py` has them do it."""

    def __init__(self, trainers: int, objective: str, mode: str, updates: int) -> None:
        algorithm = {"objective": objective, "kl_weight": 0.5, "updates_per_iteration": updates}
        config = tiny_config(algorithm=algorithm | {"gradient_shards": SHARDS}, adaptation={"mode": mode})
        self.runs = [TinyRun(config) for _ in range(trainers)]

    def train(
        self, samples: list[TrainingSample], lost_at: tuple[int, int] | None = None
    ) -> list[TrainingReport]:
        """Train; the last trainer may be lost in an update, before or after its step."""
        owned = shares(range(SHARDS), len(self.runs))
        left = list(self.runs)
        for run, shards in zip(left, owned, strict=True):
            run.trainer.begin(shards)
            for first in range(0, len(samples), 2):
                run.trainer.add(samples[first : first + 2])
        for update in range(self.runs[0].config.algorithm.updates_per_iteration):
            if lost_at == (update, 0):
                del left[-1]
            parts: dict[Span, ShardSum] = {}
            for run, shards in zip(left, owned, strict=False):
                parts |= run.trainer.sums(update, shards)
            if missing := [n for shards in owned[len(left) :] for n in shards]:
                parts |= left[0].trainer.sums(update, missing)
            total = joined({span: one.as_arrays() for span, one in parts.items()}, (0, SHARDS))
            for run in left:
                run.trainer.step(update, total)
            if lost_at == (update, 1):
                del left[-1]
        self.runs = left
        return [run.trainer.end() for run in left]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
def test_any_number_of_trainers_and_any_loss_give_the_same_bits(objective: str, mode: str, updates: int):
    alone = Several(1, objective, mode, updates).runs[0]
    samples = alone.rollout()
    report = alone.trainer.train(samples)
    assert report.training_steps == updates and report.gradient_norm > 0
    losses = itertools.product(range(updates), (0, 1))
    for trainers, lost_at in [(1, None), (2, None), (3, None), *((3, at) for at in losses)]:
        several = Several(trainers, objective, mode, updates)
        reports = several.train(samples, lost_at)
        assert reports == [report] * (trainers - (lost_at is not None))
        assert all(run.trainer.blobs() == alone.trainer.blobs() for run in several.runs), (trainers, lost_at)


def test_another_number_of_shards_is_another_sum_up_to_rounding():
    one, two = (TinyRun(tiny_config(algorithm={"gradient_shards": shards})) for shards in (1, 2))
    samples = one.rollout()
    norms = [run.trainer.train(samples).gradient_norm for run in (one, two)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert one.trainer.blobs() != two.trainer.blobs()
