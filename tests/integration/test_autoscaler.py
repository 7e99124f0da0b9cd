"""`runtime.capacity = "ray"`: an autoscaler brings instances when it is asked, and takes idle ones.

Instances are processes of this machine: Ray has a provider for it, meant for tests. What asks the autoscaler,
and what it decides, are as on any cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.cluster.ray.ray_cluster import MARKET_LABEL
from gpu_runtime.cluster.ray.ray_internals import LOOPBACK
from gpu_runtime.exploration.plan import plain_plan
from gpu_runtime.fleet import rented_capacity
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.capacity_decision import CapacityDecision, RentingTerms
from storage.config.loading import load_config
from tests.running_up import free_port

LIMIT_S = 400.0
"""A guard against hanging on a machine that is busy."""

SETTINGS = [
    "sampling.batch_size=4", "runtime.scorer_workers=1", "runtime.commit_steps=1", "runtime.capacity=ray",
    "runtime.spot_workers=2", "runtime.start_timeout_s=600",
]  # fmt: skip
PLAN = plain_plan(list(range(8)), 16, 1)


_HEAD = "f" * 51 + "0" * 5
"""The identifier by which this provider knows the instance that is there from the start."""

_COMMANDS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude",
    "rsync_filter",
)  # fmt: skip
"""Lists that Ray asks for; there is nothing to set up."""

_STORE_BYTES = 128 * 1024**2
_LIMIT_S = 200.0
_STARTED = b"Ray runtime started."


@contextmanager
def autoscaled_ray(folder: Path, reserved_cpus: int, most_spot: int) -> Iterator[str]:
    """Its address, for `runtime.cluster`; no process of it is left."""
    port, client_port, config = free_port(), free_port(), folder / "autoscaler.json"
    address = f"{LOOPBACK}:{port}"
    config.write_text(json.dumps(_config(address, reserved_cpus, most_spot)))
    environment = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": _HEAD,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": "60",  # one that did not start is replaced then
        "RAY_agent_register_timeout_ms": "120000",  # processes wait for a processor
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # it then listens on this machine's loopback address alone
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [
        Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--port", str(port),
        "--node-ip-address", LOOPBACK, "--num-cpus", str(reserved_cpus), "--include-dashboard=false",
        "--ray-client-server-port", str(client_port), "--min-worker-port", "0", "--max-worker-port", "0",
        "--labels", f"{MARKET_LABEL}=on-demand", "--autoscaling-config", config,
        "--object-store-memory", str(_STORE_BYTES),
    ]  # fmt: skip
    log = folder / "head.log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _LIMIT_S
        while _STARTED not in log.read_bytes():
            assert head.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield address
    finally:
        _end(head.pid)


def _config(address: str, reserved_cpus: int, most_spot: int) -> dict[str, Any]:
    spot = {"CPU": 1, "object_store_memory": _STORE_BYTES}

    def instances(resources: dict[str, int], most: int, **more: Any) -> dict[str, Any]:
        return {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": most, **more}

    return {
        "cluster_name": "of-a-test",
        "max_workers": most_spot,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,  # they share an address
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": _HEAD,
            "gcs_address": address,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": instances({"CPU": reserved_cpus}, 0),
            "spot": instances(spot, most_spot, labels={MARKET_LABEL: "spot"}),
        },
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.05,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in _COMMANDS},
        "file_mounts_sync_continuously": False,
    }


def _end(session: int) -> None:
    """Kill all processes of a session: also those whose parent has ended."""
    processes: list[psutil.Process] = []
    for one in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(one.pid) == session:
                processes.append(one)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not psutil.wait_procs(processes, timeout=60)[1], "processes are left behind"


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
