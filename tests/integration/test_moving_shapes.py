"""Clips through the whole runtime, on local processes: drafted, shared, trained on, judged and measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_runtime.runtime import Runtime
from tests.drafted_iteration import drafting, rolled_out_as_alone

pytestmark = pytest.mark.slow

SETTINGS = ["exploration.drafts=0", "exploration.prompts=0", "exploration.candidates=6"]


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "shared"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with drafting("moving-shapes", request.param, *SETTINGS) as runtime:
        yield runtime


def test_clips_are_drafted_rolled_out_trained_on_and_judged(runtime: Runtime):
    rolled = rolled_out_as_alone(runtime)
    assert {one.sample.image_HWC.shape for one in rolled.delivered} == {(8, 24, 24, 3)}
    trained = runtime.train(rolled, runtime.reward(rolled))
    assert trained.report.ratio_deviation <= runtime.config.algorithm.ratio_tolerance
    evaluation = runtime.evaluate(runtime.evaluate_prompts[:8])
    assert len(evaluation.samples) == 16, "two clips of each prompt"
    for sample, score, figures in zip(evaluation.samples, evaluation.scores, evaluation.figures, strict=True):
        assert score.error is None and score.judge is not None and score.judge.error is None
        assert {"truth_distance", "truth_drawn"} <= figures.keys()
        assert sample.image_HWC.shape == (8, 24, 24, 3)
