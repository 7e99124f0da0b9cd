"""Held-out scoring of a checkpoint or of an untouched model, as one task."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from gpu_runtime.runtime import Runtime
from storage.checkpoints import CheckpointStore
from storage.config import RunConfig
from storage.errors import CheckpointError
from storage.home import Home


@task(name="evaluate-weights", cache_policy=NO_CACHE, persist_result=False)
def evaluate_weights(home: Home, config: RunConfig, run_id: str | None) -> dict[str, Any]:
    """Load, generate, judge.

    Raises:
        CheckpointError: if the run has no checkpoint yet.
    """
    checkpoint = None
    if run_id is not None:
        checkpoint = CheckpointStore(home.checkpoints(run_id), config.checkpoint.keep).load_latest()
        if checkpoint is None:
            raise CheckpointError(
                f"run {run_id!r} has no checkpoint yet; resume it with `spotlight resume {run_id}`"
            )
    runtime = Runtime(config)
    try:
        if checkpoint is not None:
            runtime.restore(checkpoint.blobs, checkpoint.record["policy_version"])
        evaluation = runtime.evaluate()
    finally:
        runtime.close()
    return {
        "run_id": run_id,
        "model": config.model.path,
        "iteration": checkpoint.iteration if checkpoint else 0,
        "score": evaluation.score,
        "exact": evaluation.exact,
        "images": len(evaluation.scores),
        "scorer_errors": sum(score.error is not None for score in evaluation.scores),
    }
