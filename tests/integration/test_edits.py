"""Edits through the whole runtime, on local processes: drafted, shared, trained on and judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_runtime.embedded_tasks.edits import edit_of
from gpu_runtime.rewards.edit_rules import edited_region
from gpu_runtime.runtime import Runtime
from storage.prompts.of_a_run import load_run_prompts
from storage.prompts.sources import read_source
from tests.drafted_iteration import drafting, rolled_out_as_alone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "shared"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with drafting("edits", request.param) as runtime:
        yield runtime


def test_edits_are_drafted_rolled_out_trained_on_and_judged(runtime: Runtime):
    train, held_out = ({row.prompt_id: row for row in rows} for rows in load_run_prompts(runtime.config))
    rolled = rolled_out_as_alone(runtime)
    for request in (one.sample.request for one in rolled.delivered):
        assert request.source == train[request.prompt_id].source
    trained = runtime.train(rolled, runtime.reward(rolled))
    assert trained.report.ratio_deviation <= runtime.config.algorithm.ratio_tolerance
    evaluation = runtime.evaluate(runtime.evaluate_prompts[:8])
    assert len(evaluation.samples) == 8
    for sample, score, figures in zip(evaluation.samples, evaluation.scores, evaluation.figures, strict=True):
        assert score.error is None and score.judge is not None and score.judge.error is None
        assert {"truth_distance", "truth_drawn"} <= figures.keys()
        prompt = held_out[sample.request.prompt_id]
        source_HWC = read_source(prompt.source)
        changed_HW = (sample.image_HWC != source_HWC).any(axis=-1)
        outside = changed_HW & ~edited_region(edit_of(prompt), changed_HW.shape)
        assert score.detail.endswith(f"; {outside.sum()} other pixels changed")
        assert not (score.exact and outside.any())
