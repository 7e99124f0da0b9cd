"""Builds the cluster that a run's settings name.

The code that builds a cluster also ends it. A `Runtime` receives a cluster and ends only the workers that it
started there, so one cluster can serve several runtimes in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gpu_runtime.cluster.protocol import Cluster
from storage.config.run_config import EvaluationConfig, RewardConfig, RunConfig
from storage.config.runtime import RuntimeConfig


def cluster_class(runtime: RuntimeConfig, output: Path | None = None) -> Callable[[RunConfig], Cluster]:
    """Return the cluster class of a run, importing its libraries, which takes a second.

    Args:
        output: folder for its workers' output; Ray has its own, `session_latest/logs`.
    """
    if runtime.cluster == "local":
        from gpu_runtime.cluster.local_cluster import LocalCluster

        return partial(LocalCluster, output=output)
    from gpu_runtime.cluster.ray.ray_cluster import RayCluster  # only this cluster imports Ray

    return RayCluster


def start_early(reward: RewardConfig, evaluation: EvaluationConfig) -> None:
    """Start the process from which this machine's workers and the checks before a run are forked.

    It imports nothing heavy. The process ends with this one.
    """
    if sys.platform == "linux":
        from gpu_runtime.cluster.fork_client import start_fork_server
        from gpu_runtime.rewards.registry import chosen_judge, chosen_scorer

        second = chosen_judge(reward, evaluation)
        judges = [*chosen_scorer(reward).judges, *([] if second is None else [second])]
        start_fork_server([judge.plugin.module for judge in judges if judge.plugin.module])


@contextmanager
def open_cluster(config: RunConfig, output: Path | None = None) -> Iterator[Cluster]:
    """Start or join the cluster of a run, and provide it within a context; `output`: see `cluster_class`.

    Raises:
        RuntimeFailure: if it does not start, or no cluster answers at the address.
        ConfigurationError: if it lacks resources that the settings require.
    """
    cluster = cluster_class(config.runtime, output)(config)
    try:
        yield cluster
    finally:
        cluster.shutdown()
