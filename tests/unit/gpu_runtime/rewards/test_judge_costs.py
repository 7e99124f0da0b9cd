"""What judges with a price cost: counted once for each answer, kept beside the devices' bill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.diffusion.samples import GeneratedImage
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.scorers.weighted_sum import Part, WeightedSum
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.scores import Score
from storage.home import Home
from storage.prompts.files import PromptRecord
from storage.record.ledger import read_ledger
from storage.record.records import JUDGE_USD
from storage.record.results import live_runs, run_result
from storage.record.run_store import RunStore
from tasks.iteration.budget import spending
from tests.fake_drafters import FakePool, fake_prompts
from tests.sample_run import evaluation_record, iteration_record, write_sample_run
from tests.scripted import Script
from tests.tiny_run import request

IMAGE = np.zeros((2, 2, 3), np.uint8)
PROMPT = PromptRecord(0, "any")


class Paid(Scorer):
    """A judge that asks so much for its score."""

    name = "paid"

    def __init__(self, score: Score) -> None:
        self._score = score

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """The same score each time."""
        return self._score


@pytest.mark.parametrize("second", [Score(0.5, True, ""), Score(0.0, False, "", error="gone")])
def test_a_sum_has_the_price_of_its_parts_whether_it_fails_or_not(second: Score):
    parts = {"a": Part(Paid(Score(1.0, True, "", usd=0.25))), "b": Part(Paid(second))}
    (score,) = score_each(WeightedSum(parts), [IMAGE], [PROMPT])
    assert (score.usd, score.error is None) == (0.25, second.error is None)


def test_a_score_that_is_none_has_been_paid_for():
    (score,) = score_each(Paid(Score(7.0, True, "", usd=0.25)), [IMAGE], [PROMPT])
    assert (score.usd, score.error) == (0.25, "score 7.0 is not in [0, 1]")


def test_the_pool_counts_rollouts_and_drafts_and_leaves_evaluations_to_their_images():
    script = Script()
    pool = FakePool(1, script, lambda prompt, seed: Score(0.5, False, "", usd=0.5))
    for kind in (RequestKind.ROLLOUT, RequestKind.EXPLORE, RequestKind.EVALUATE):
        drawn = [GeneratedImage(request(0, seed, kind), IMAGE) for seed in range(3)]
        pool.judge(drawn, fake_prompts(3))
    while script.under_way:
        script.end("scorer-0")
    assert [pool.collector.close().judge_usd for _ in range(2)] == [3.0, 0.0]


def test_ledger_and_result_have_them_beside_the_bill(tmp_path: Path):
    store = RunStore(Home(tmp_path))
    write_sample_run(store, "r", iterations=2)
    with store.reading() as connection:
        before = read_ledger(connection, "r")
    assert (before.judge_usd, run_result(store, "r")["judge_usd"]) == (0.0, 0.0)
    iteration, evaluation = iteration_record("r", 3, 5.0), evaluation_record("r", 3, 6.0, images=2)
    iteration.metrics[JUDGE_USD] = 0.75
    evaluation.images[:] = [
        replace(image, figures={**image.figures, JUDGE_USD: 0.125}) for image in evaluation.images
    ]
    store.commit_iteration(iteration)
    store.commit_evaluation(evaluation)
    with store.reading() as connection:
        ledger, (live,) = read_ledger(connection, "r"), live_runs(connection)
    result = run_result(store, "r")
    assert (ledger.judge_usd, result["judge_usd"], live.judge_usd) == (1.0, 1.0, 1.0)
    assert result["cost_usd"] == pytest.approx(ledger.spent().usd)
    store.discard_after("r", 2)
    with store.reading() as connection:
        assert read_ledger(connection, "r").judge_usd == 1.0, "paid, though a resume does the iteration again"
    assert spending(store, "r").usd == pytest.approx(ledger.spent().usd + 1.0)
