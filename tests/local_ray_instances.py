"""Real Ray instances for a test module, which must leave no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from gpu_runtime.cluster.ray.local_instances import LocalInstances


@contextmanager
def local_ray_instances(reserved_cpus: int, reserved_gpus: int = 0) -> Iterator[LocalInstances]:
    """A reserved instance of so many processors and GPUs; the test adds the spot ones."""
    others = set(psutil.Process().children(recursive=True))  # of tests before
    instances = LocalInstances(reserved_cpus, reserved_gpus)
    try:
        yield instances
    finally:
        ours = set(psutil.Process().children(recursive=True)) - others
        instances.close()
    assert not psutil.wait_procs(ours, timeout=60)[1], "processes are left behind"
