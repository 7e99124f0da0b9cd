"""Clips through the whole runtime, on local processes: drafted, shared, trained on, judged and measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import rollout_requests
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.prompts.of_a_run import load_run_prompts
from tests.shared_samples import NEAR

pytestmark = pytest.mark.slow

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=4", "sampling.evaluate_steps=4",
    "sampling.window_size=2", "sampling.window_stop=3", "algorithm.prompts_per_iteration=4",
    "algorithm.group_size=4",
    "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.cluster=local",
    "runtime.commit_steps=1", "exploration.strategy=fresh", "exploration.drafts=0", "exploration.prompts=0",
    "exploration.candidates=6",
]  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "shared"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    config = load_config("moving-shapes", [*SETTINGS, f"sequence_parallel.rollout={request.param}"], {})
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        yield runtime


def test_clips_are_drafted_rolled_out_trained_on_and_judged(runtime: Runtime):
    config = runtime.config
    prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[0]}
    plan = runtime.explore(1)
    assert plan.candidates and all(candidate.error is None for candidate in plan.candidates)
    rolled = runtime.rollout(plan)
    worker = DeviceWorker(config, trains=False)
    worker.use_training_weights(WeightsVersion(0))
    requests = rollout_requests(plan, prompts, config.seed, 0)
    limit = NEAR if config.sequence_parallel.largest > 1 else 0.0
    for delivered, sample in zip(rolled.delivered, worker.generate(requests), strict=True):
        assert delivered.sample.request == sample.request
        assert delivered.sample.image_HWC.shape == (8, 24, 24, 3)
        assert np.abs(delivered.sample.latents_SC - sample.latents_SC).max() <= limit
    for request, sample in zip(requests[:2], worker.generate(requests[:2]), strict=True):
        assert sample.request == request, "in a batch of another width"
        of_all = next(one.sample for one in rolled.delivered if one.sample.request == request)
        assert np.abs(of_all.latents_SC - sample.latents_SC).max() <= limit
    trained = runtime.train(rolled, runtime.reward(rolled))
    assert trained.report.ratio_deviation <= config.algorithm.ratio_tolerance
    evaluation = runtime.evaluate(runtime.evaluate_prompts[:8])
    assert len(evaluation.samples) == 16, "two clips of each prompt"
    for sample, score, figures in zip(evaluation.samples, evaluation.scores, evaluation.figures, strict=True):
        assert score.error is None and score.judge is not None and score.judge.error is None
        assert {"truth_distance", "truth_drawn"} <= figures.keys()
        assert sample.image_HWC.shape == (8, 24, 24, 3)
