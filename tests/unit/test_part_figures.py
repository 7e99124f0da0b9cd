"""The parts of a weighted sum among the figures of an iteration and of an evaluation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import tasks.commit
from gpu_runtime.rewards.protocol import Score
from storage.config.run_config import RunConfig
from tasks.commit import evaluation_record, record_evaluation

SCORES = [
    Score(0.75, True, "", parts={"ocr": 1.0, "jpeg": 0.5}),
    Score(0.25, False, "", parts={"ocr": 0.0, "jpeg": 0.5}),
    Score(0.0, False, "", error="ocr: gone", parts={"jpeg": 0.8}),
]


@pytest.mark.parametrize("scores", [SCORES, [Score(0.5, False, "")]])
def test_an_evaluation_s_parts_go_to_mlflow(scores: list[Score], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks.commit, "GALLERY", 0)
    told: dict[str, float] = {}
    session: Any = SimpleNamespace(
        config=RunConfig(),
        run_id="r",
        runtime=SimpleNamespace(
            take_device_events=list,
            take_groups=list,
            take_step_times=list,
            take_paid_time=list,
            take_standby_time=list,
        ),
        store=SimpleNamespace(commit_evaluation=lambda record: None),
        tracker=SimpleNamespace(metrics=lambda iteration, figures: told.update(figures)),
    )
    request = SimpleNamespace(prompt_id=0, prompt="a sign", seed_index=0)
    evaluation: Any = SimpleNamespace(
        samples=[SimpleNamespace(request=request, image_HWC=None)] * len(scores),
        scores=scores, policy_version=1, score=0.5, exact=0.5,
    )  # fmt: skip
    record = evaluation_record(session, evaluation, 3, 0.0, 1.0, [])
    record_evaluation.fn(session, record)
    # The image that a scorer failed on counts in no mean.
    parts = {"evaluation_part_ocr": 0.5, "evaluation_part_jpeg": 0.5} if scores is SCORES else {}
    assert told == {"evaluation_score": 0.5, "evaluation_exact": 0.5, **parts}
