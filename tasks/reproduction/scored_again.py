"""A recorded run's last checkpoint, scored once more."""

from __future__ import annotations

import os

from prefect import task
from prefect.cache_policies import NO_CACHE

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.runtime import Runtime
from storage.config.run_config import RunConfig
from storage.environment import environment
from storage.errors import CheckpointError
from storage.evaluations.reproductions import HeldOut, Reference
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from tasks.inputs import input_digests, plugin_facts


@task(
    name="evaluate-again",
    task_run_name="evaluate-again {run_id}",
    cache_policy=NO_CACHE,
    persist_result=False,
)
def evaluate_again(home: Home, config: RunConfig, run_id: str) -> Reference:
    """Score the newest checkpoint of a run on the held-out prompts, image by image.

    Args:
        home, run_id: the run, and where it is.
        config: settings to score it with.

    Returns:
        The single evaluation, after the checkpoint's iteration; the digests are those of the run's files.

    Raises:
        CheckpointError: the run has no checkpoint in this home, or its newest one is damaged.
    """
    checkpoint = CheckpointStore(home.run(run_id)).load_latest(passes_over=False)
    if checkpoint is None:
        raise CheckpointError(
            f"run {run_id!r} has no checkpoint in {home.path}, so it cannot be scored again; train it again"
        )
    facts = environment() | input_digests(config.model, config.prompts) | plugin_facts(config)
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        runtime.restore(checkpoint.blobs, checkpoint.state["policy_version"])
        evaluation = runtime.evaluate(runtime.evaluate_prompts)
    scores = [
        HeldOut(sample.request.prompt_id, sample.request.seed_index, score.value, score.exact)
        for sample, score in zip(evaluation.samples, evaluation.scores, strict=True)
    ]
    prompts = {sample.request.prompt_id: sample.request.prompt for sample in evaluation.samples}
    return Reference(
        f"{run_id} scored by process {os.getpid()}",
        config.model_dump(mode="json"),
        facts,
        scores={checkpoint.iteration: scores},
        prompts={"evaluate": prompts},
    )
