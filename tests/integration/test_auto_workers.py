"""A run that is given no number of workers, on hosts that say they have GPUs and how they are rented.

Ray is started with numbers of GPUs; the workers compute on the processor.
"""

from __future__ import annotations

import time

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import plain_plan
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from tests.local_ray_instances import local_ray_instances

LIMIT_S = 600.0
"""A guard against hanging: three instances and four workers are started, on a machine that may be busy."""

SETTINGS = [
    "sampling.batch_size=4", "runtime.scorer_workers=1", "runtime.commit_steps=1",
    "runtime.reserved_workers=auto", "runtime.spot_workers=auto", "runtime.start_timeout_s=600",
]  # fmt: skip
PLAN = plain_plan(list(range(8)), 16, 1)


def await_slots(runtime: Runtime, slots: set[str]) -> None:
    """Roll out until workers of just these slots have had a share; they join one after another."""
    deadline, seen = time.monotonic() + LIMIT_S, set[str]()
    while seen != slots:
        if seen:
            time.sleep(2)  # in which the processes that start have the processor
        rolled = runtime.rollout(PLAN)
        seen |= {delivered.worker.partition(".")[0] for delivered in rolled.delivered}
        found = f"{sorted(seen)}, lost: {runtime.lost_workers}, not started: {runtime.failed_starts}"
        assert seen <= slots and time.monotonic() < deadline, found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_worker_a_gpu_by_label_and_more_when_a_host_comes():
    with local_ray_instances(reserved_cpus=3, reserved_gpus=2) as instances:
        instances.add("one", gpus=1)
        config = load_config("smoke", [*SETTINGS, f"runtime.cluster={instances.address}"], {})
        with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
            assert cluster.devices() == {"reserved": 2, "spot": 1}
            first = {"reserved-0", "reserved-1", "spot-0"}
            await_slots(runtime, first)
            instances.add("two", gpus=1)
            assert cluster.devices() == {"reserved": 2, "spot": 2}
            await_slots(runtime, first | {"spot-1"})
