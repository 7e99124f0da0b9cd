"""Edits through the whole runtime, on local processes: drafted, shared, trained on and judged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.embedded_tasks.edits import edit_of
from gpu_runtime.exploration.plan import rollout_requests
from gpu_runtime.rewards.edit_rules import edited_region
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.prompts.of_a_run import load_run_prompts
from storage.prompts.sources import read_source
from tests.shared_samples import NEAR

pytestmark = pytest.mark.slow

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=4", "sampling.evaluate_steps=4",
    "sampling.window_size=2", "sampling.window_stop=3", "algorithm.prompts_per_iteration=4",
    "algorithm.group_size=4",
    "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.cluster=local",
    "runtime.commit_steps=1", "exploration.strategy=fresh",
]  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "shared"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    config = load_config("edits", [*SETTINGS, f"sequence_parallel.rollout={request.param}"], {})
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        yield runtime


def test_edits_are_drafted_rolled_out_trained_on_and_judged(runtime: Runtime):
    config = runtime.config
    prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[0]}
    plan = runtime.explore(1)
    assert plan.candidates and all(candidate.error is None for candidate in plan.candidates)
    rolled = runtime.rollout(plan)
    worker = DeviceWorker(config, trains=False)
    worker.use_training_weights(WeightsVersion(0))
    alone = worker.generate(rollout_requests(plan, prompts, config.seed, 0))
    limit = NEAR if config.sequence_parallel.largest > 1 else 0.0
    for delivered, sample in zip(rolled.delivered, alone, strict=True):
        assert delivered.sample.request == sample.request
        assert delivered.sample.request.source == prompts[sample.request.prompt_id].source
        assert np.abs(delivered.sample.latents_SC - sample.latents_SC).max() <= limit
    trained = runtime.train(rolled, runtime.reward(rolled))
    assert trained.report.ratio_deviation <= config.algorithm.ratio_tolerance
    evaluation = runtime.evaluate(runtime.evaluate_prompts[:8])
    held_out = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[1]}
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
