"""The cluster that a run's settings name.

Whoever builds a cluster ends it. A `Runtime` is given one and ends only the workers that it has started
there, so that one cluster can serve several runtimes, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runtime.cluster.protocol import Cluster
from storage.config import RunConfig


def build_cluster(config: RunConfig) -> Cluster:
    """Start or join the cluster of a run; end it with `shutdown`.

    Raises:
        RuntimeFailure: if it does not start, or none answers at the address.
        ConfigurationError: if it has not what the settings ask for.
    """
    if config.runtime.cluster == "local":
        from gpu_runtime.cluster.local_cluster import LocalCluster

        return LocalCluster(config)
    from gpu_runtime.actors.ray_cluster import RayCluster  # nobody else need import Ray

    return RayCluster(config)


@contextmanager
def open_cluster(config: RunConfig) -> Iterator[Cluster]:
    """The cluster of a run within a context; see `build_cluster`."""
    cluster = build_cluster(config)
    try:
        yield cluster
    finally:
        cluster.shutdown()
