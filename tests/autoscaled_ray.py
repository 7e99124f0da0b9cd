"""A Ray cluster of this machine whose autoscaler starts and ends spot instances: processes, not machines.

Ray has a provider for it, meant for tests. What asks the autoscaler, and what it decides,
are as on any cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from gpu_runtime.cluster.ray.ray_cluster import MARKET_LABEL
from gpu_runtime.cluster.ray.ray_internals import LOOPBACK
from tests.running_up import free_port

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
    processes = [one for one in psutil.process_iter() if _session_of(one.pid) == session]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert not psutil.wait_procs(processes, timeout=60)[1], "processes are left behind"


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
