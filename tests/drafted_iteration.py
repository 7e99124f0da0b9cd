"""A short iteration on local processes with drafts of its own weights, against a worker alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import rollout_requests
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.prompts.of_a_run import load_run_prompts
from tests.shared_samples import NEAR

SETTINGS = [
    "sampling.batch_size=4", "sampling.rollout_steps=4", "sampling.evaluate_steps=4",
    "sampling.window_size=2", "sampling.window_stop=3", "algorithm.prompts_per_iteration=4",
    "algorithm.group_size=4",
    "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.cluster=local",
    "runtime.commit_steps=1", "exploration.strategy=fresh",
]  # fmt: skip


@contextmanager
def drafting(preset: str, degree: int, *settings: str) -> Iterator[Runtime]:
    """Open a preset's runtime; each sample of a rollout is shared by `degree` devices."""
    config = load_config(preset, [*SETTINGS, *settings, f"sequence_parallel.rollout={degree}"], {})
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        yield runtime


def rolled_out_as_alone(runtime: Runtime) -> Rollout:
    """Draft and roll out the first iteration; its samples must be those that one worker makes.

    They have the same bits if no devices share them. A batch of another width gives the same.
    """
    config = runtime.config
    plan = runtime.explore(1)
    assert plan.candidates and all(candidate.error is None for candidate in plan.candidates)
    rolled = runtime.rollout(plan)
    worker = DeviceWorker(config, trains=False)
    worker.use_training_weights(WeightsVersion(0))
    prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[0]}
    requests = rollout_requests(plan, prompts, config.seed, 0)
    found = {one.sample.request: one.sample.latents_SC for one in rolled.delivered}
    assert list(found) == requests
    limit = NEAR if config.sequence_parallel.largest > 1 else 0.0
    for asked in (requests, requests[:2]):
        for request, sample in zip(asked, worker.generate(asked), strict=True):
            assert sample.request == request
            assert np.abs(found[request] - sample.latents_SC).max() <= limit
    return rolled
