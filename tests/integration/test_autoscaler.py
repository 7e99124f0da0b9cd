"""`runtime.capacity = "ray"`: an autoscaler brings instances when it is asked, and takes idle ones."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import plain_plan
from gpu_runtime.fleet import rented_capacity
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.capacity_decision import CapacityDecision, RentingTerms
from storage.config.loading import load_config
from tests.autoscaled_ray import autoscaled_ray

LIMIT_S = 400.0
"""A guard against hanging on a machine that is busy."""

SETTINGS = [
    "sampling.batch_size=4", "runtime.scorer_workers=1", "runtime.commit_steps=1", "runtime.capacity=ray",
    "runtime.spot_workers=2", "runtime.start_timeout_s=600",
]  # fmt: skip
PLAN = plain_plan(list(range(8)), 16, 1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_instances_come_when_they_are_wanted_and_go_when_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wanted = 2

    def decide(forecast: object, terms: RentingTerms, held: int) -> CapacityDecision:
        return CapacityDecision(wanted, "the test wants it")

    monkeypatch.setattr(rented_capacity, "decide_capacity", decide)
    # Ray remembers how the autoscaler of a process's first cluster is asked; tests before have had others.
    monkeypatch.setattr("ray.autoscaler.v2.utils.cached_is_autoscaler_v2", None)
    with autoscaled_ray(tmp_path, reserved_cpus=2, most_spot=2) as address:
        config = load_config("smoke", [*SETTINGS, f"runtime.cluster={address}"], {})
        with open_cluster(config) as cluster, ExitStack() as stack:
            assert cluster.devices() == {"reserved": 1, "spot": 0}
            runtime = stack.enter_context(Runtime(config, cluster))
            seen, deadline = set[str](), time.monotonic() + LIMIT_S
            while not {"spot-0", "spot-1"} <= seen:
                assert time.monotonic() < deadline, f"{seen}, not started: {runtime.failed_starts}"
                rolled = runtime.rollout(PLAN)
                seen |= {delivered.worker.partition(".")[0] for delivered in rolled.delivered}
            assert cluster.devices() == {"reserved": 1, "spot": 2}

            wanted = 0
            while cluster.devices()["spot"]:
                assert time.monotonic() < deadline + LIMIT_S, "the autoscaler keeps idle instances"
                rolled = runtime.rollout(PLAN)
                assert {delivered.worker for delivered in rolled.delivered} == {"reserved-0"}
                time.sleep(1)
            assert runtime.lost_workers == [], "workers are drained before their instance goes"
