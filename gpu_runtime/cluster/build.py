"""The cluster that a run's settings name.

The code that builds a cluster ends it. A `Runtime` is given one and ends only the workers that it has started
there, so that one cluster can serve several runtimes, one after another.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runtime.cluster.protocol import Cluster
from storage.config.run_config import RunConfig


def build_cluster(config: RunConfig) -> Cluster:
    """Start or join the cluster of a run; end it with `shutdown`.

    Raises:
        RuntimeFailure: if it does not start, or none answers at the address.
        ConfigurationError: if it has not what the settings ask for.
    """
    if config.runtime.cluster == "local":
        from gpu_runtime.cluster.local_cluster import LocalCluster

        return LocalCluster(config)
    from gpu_runtime.cluster.ray.ray_cluster import RayCluster  # only this cluster imports Ray

    return RayCluster(config)


def start_early(config: RunConfig) -> None:
    """Let begin what takes a cluster long, for a `build_cluster` that comes later in this process.

    Imports nothing heavy. What it starts ends with this process.
    """
    if config.runtime.cluster == "local" and sys.platform == "linux":
        from gpu_runtime.cluster.fork_client import start_fork_server

        start_fork_server()


@contextmanager
def open_cluster(config: RunConfig) -> Iterator[Cluster]:
    """The cluster of a run within a context; see `build_cluster`."""
    cluster = build_cluster(config)
    try:
        yield cluster
    finally:
        cluster.shutdown()
