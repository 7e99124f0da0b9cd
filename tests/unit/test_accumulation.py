"""Samples that come a prompt group at a time: the bits of all at once, gradients before the last has come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from gpu_runtime.learning.accumulation import Accumulation
from gpu_runtime.learning.objectives.protocol import BatchTerms, Row, TrainingSample
from gpu_runtime.learning.trainer_state import trainer_blobs
from storage.errors import TrainingError
from tests.tiny_run import TinyRun, shuffled, tiny_config


class CountingObjective:
    """Two rows a sample; notes what is computed, with which weight."""

    def __init__(self) -> None:
        self.computed: list[tuple[list[Row], float]] = []

    def rows(self, samples: Sequence[Any]) -> list[Row]:
        return [Row(sample, place) for sample in samples for place in range(2)]

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        self.computed.append((list(rows), weight))
        return BatchTerms(weight * len(rows), 0.0, 0.0, float("nan") if "bad" in rows[0] else 0.0)


def accumulated(parts: Sequence[Sequence[Any]], rank: int = 0, processes: int = 1) -> CountingObjective:
    objective: Any = CountingObjective()
    update = Accumulation(objective, 3, rank, processes)
    for part in parts:
        update.add(part)
    update.end()
    assert update.rows == 2 * sum(map(len, parts))
    assert update.terms.loss == sum(len(rows) for rows, weight in objective.computed if weight)
    return objective


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_batches_do_not_depend_on_what_comes_with_what(processes: int) -> None:
    samples = list("abcdefg")  # fourteen rows: four batches of three and one of two
    rows = CountingObjective().rows(samples)
    batches = [rows[first : first + 3] for first in range(0, len(rows), 3)]
    for cuts in itertools.combinations(range(1, 7), 2):
        parts = [samples[: cuts[0]], samples[cuts[0] : cuts[1]], samples[cuts[1] :]]
        everywhere = [accumulated(parts, rank, processes).computed for rank in range(processes)]
        weighed = [[rows for rows, weight in computed if weight] for computed in everywhere]
        assert [weighed[n % processes][n // processes] for n in range(5)] == batches
        assert sum(map(len, weighed)) == 5
        assert len({len(computed) for computed in everywhere}) == 1, "each batch takes every process"


def test_whole_batches_are_computed_at_once() -> None:
    objective: Any = CountingObjective()
    update: Any = Accumulation(objective, 3, 0, 2)
    update.add("ab")
    assert not objective.computed, "four rows are less than a batch for each of two processes"
    update.add("c")
    assert len(objective.computed) == 1


def test_a_deviation_that_is_no_number_stays_one() -> None:
    objective: Any = CountingObjective()
    update: Any = Accumulation(objective, 3)
    update.add(["bad", "b", "c", "d"])
    assert update.terms.deviation != update.terms.deviation


def one_by_one(run: TinyRun, samples: Sequence[TrainingSample]) -> None:
    """Prompt groups in their order; samples of a group in any."""
    for prompt in sorted({sample.request.prompt_id for sample in samples}):
        run.trainer.add(shuffled([s for s in samples if s.request.prompt_id == prompt], prompt))


@pytest.mark.parametrize("objective", ["grpo", "nft"])
@pytest.mark.parametrize("updates", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 5])
def test_a_group_at_a_time_gives_the_bits_of_all_at_once(objective: str, updates: int, size: int) -> None:
    algorithm = {"objective": objective, "updates_per_iteration": updates, "kl_weight": 0.5}
    settings = tiny_config(algorithm=algorithm, sampling={"batch_size": size})
    at_once, parts = TinyRun(settings), TinyRun(settings)
    samples = at_once.rollout()
    report = at_once.trainer.train(samples)
    parts.trainer.begin()
    one_by_one(parts, samples[:2])
    parts.trainer.begin()  # an iteration that does not come to its end leaves nothing behind
    one_by_one(parts, samples)
    assert parts.trainer.finish() == report
    assert trainer_blobs(parts.trainer) == trainer_blobs(at_once.trainer)


def test_gradients_are_there_before_the_last_group_has_come_and_weights_stay() -> None:
    run = TinyRun(tiny_config())
    samples, before = run.rollout(), trainer_blobs(run.trainer)
    run.trainer.begin()
    run.trainer.add(samples[:2])
    assert any(weight.grad is not None for weight in run.policy.trained.values())
    assert trainer_blobs(run.trainer) == before


def test_groups_out_of_their_order_are_a_defect() -> None:
    run = TinyRun(tiny_config())
    samples = run.rollout()
    run.trainer.begin()
    run.trainer.add(samples[2:])
    with pytest.raises(AssertionError, match="order of their prompts"):
        run.trainer.add(samples[:2])


def test_weights_that_changed_since_the_gradients_were_added_are_refused() -> None:
    run = TinyRun(tiny_config())
    samples = run.rollout()
    run.trainer.begin()
    run.perturb()
    run.trainer.add(samples)
    with pytest.raises(TrainingError, match="probability ratio"):
        run.trainer.finish()
