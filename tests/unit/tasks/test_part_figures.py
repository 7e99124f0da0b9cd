"""The parts of a weighted sum among the figures of an iteration and of an evaluation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tasks.iteration.phases
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.scheduling.scores import Score, part_figures
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.prompts.files import PromptRecord
from storage.readers.figures import gallery, moments_after
from storage.record.records import Collected, EvaluationRecord, JudgedImage, StateInterval
from storage.record.run_store import RunStore
from tasks.iteration.phases import evaluation_record, record_evaluation
from tests.sample_run import iteration_record

SCORES = [
    Score(0.75, True, "", parts={"ocr": 1.0, "jpeg": 0.5}),
    Score(0.25, False, "", parts={"ocr": 0.0, "jpeg": 0.5}),
    Score(0.0, False, "", error="ocr: gone", parts={"jpeg": 0.8}),
]


def drawn(prompt_id: int, seed_index: int = 0) -> Any:
    """An image of a prompt, as far as it is asked for."""
    request = SampleRequest(RequestKind.EVALUATE, 0, 0, prompt_id, seed_index, 1, "a sign")
    return SimpleNamespace(request=request, image_HWC=None)


@pytest.mark.parametrize("scores", [SCORES, [Score(0.5, False, "")]])
def test_an_evaluation_s_parts_go_to_readers(
    scores: list[Score], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(tasks.iteration.phases, "GALLERY", 0)
    store = entered(tmp_path)
    runtime = SimpleNamespace(compared_prompts=[PromptRecord(0, "a sign")])
    session: Any = SimpleNamespace(config=RunConfig(), run_id="r", runtime=runtime, store=store)
    figures = [{"grain": 0.01 * (place + 1)} | part_figures(score) for place, score in enumerate(scores)]
    # Of a prompt that the other evaluations do not have: it counts in nothing that is compared with them.
    alone = Score(1.0, True, "", parts={"ocr": 1.0, "jpeg": 1.0})
    samples = [*(drawn(0, seed) for seed in range(len(scores))), drawn(1)]
    evaluation = Evaluation(samples, [*scores, alone], 1, [*figures, {"grain": 1.0}])
    paid = StateInterval("reserved-0", "reserved", "rollout", 0.0, 1.0, 3600.0)
    record = evaluation_record(session, evaluation, 0, 0.0, 1.0, Collected(intervals=[paid]))
    assert (record.iteration, record.policy_version, record.started_at, record.ended_at) == (0, 1, 0.0, 1.0)
    assert record_evaluation.fn(session, record) is None
    assert len(record.images) == len(scores) + 1
    assert record.images[0].figures == {"grain": 0.01} | part_figures(scores[0])
    # The image that a scorer failed on counts in no mean.
    parts = {"score/evaluation_part_ocr": 0.5, "score/evaluation_part_jpeg": 0.5} if scores is SCORES else {}
    costs = {"cost/evaluation_usd": 1.0, "cost/total_usd": 1.0}
    grain = {"quality/grain": pytest.approx(0.02 if scores is SCORES else 0.01)}
    both = {"score/evaluation_score": 0.5, "score/evaluation_exact": 0.5 if scores is SCORES else 0.0}
    with store.reading("r") as connection:
        [moment] = moments_after(connection, "r", -1)
        assert moment.figures == both | parts | grain | costs
        assert gallery(connection, "r", 0) == {}


def test_pictures_have_the_same_names_at_every_evaluation(tmp_path: Path):
    images = [
        JudgedImage(0, 1, 'a sign that says "K7A"', "", 0.5, False, "", None, png=b"png"),
        JudgedImage(1, 0, "not kept", "", 0.5, False, "", None),
    ]
    store = entered(tmp_path)
    store.commit_evaluation(EvaluationRecord("r", 0, 3, 0.0, 1.0, 0.5, 0.0, images))
    with store.reading("r") as connection:
        assert gallery(connection, "r", 0) == {"held-out/001-a-sign-that-says-K7A-1": b"png"}


def test_an_iteration_has_the_names_of_other_systems_too(tmp_path: Path):
    store = entered(tmp_path)
    record = iteration_record("r", 1, 0.0, 64)
    figures = {"groups": 8.0, "groups_dropped": 2.0, "clip_share": 0.25, "rollout_s": 16.0, "train_s": 3.2}
    store.commit_iteration(dataclasses.replace(record, metrics={**figures, "iteration_s": 32.0}))
    with store.reading("r") as connection:
        [moment] = moments_after(connection, "r", -1)
    expected = {
        "training/zero_std_ratio": 0.25, "training/clip_fraction": 0.25, "ms_per_image/rollout": 250.0,
        "ms_per_image/train": 50.0, "ms_per_image/iteration": 500.0, "training/clip_share": 0.25,
    }  # fmt: skip
    assert moment.figures.items() >= expected.items()
    assert "ms_per_image/reward" not in moment.figures


def entered(path: Path) -> RunStore:
    """A home with the run "r"."""
    store = RunStore(Home(path))
    store.create_run("r", RunConfig(), {}, 0)
    return store
