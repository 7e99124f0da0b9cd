"""Real Ray instances on this machine that come and go: a reserved one, and spot ones.

Only this file uses `ray.cluster_utils`, and private parts of Ray with it. Each instance has its own raylet,
and all its processes are one process group: one SIGKILL for all of them makes it lost.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil
from ray._private import services
from ray._private.node import Node
from ray.cluster_utils import Cluster as RayNodes

from gpu_runtime.cluster.ray.ray_cluster import MARKET_LABEL
from gpu_runtime.cluster.ray.ray_internals import LOOPBACK, kept_signal_handlers, without_api_server
from storage.errors import RuntimeFailure

_STORE_BYTES = 128 * 1024**2
_LISTEN_PORT = "dashboard_agent_listen_port"
_AGENT_PORTS = range(20_000, 32_768)
"""Ports that neither Linux assigns to a connection nor Ray to a worker. A connection could take a higher one
after it was found free and before the agent listens; a raylet ends with its agent."""

_ATTEMPTS = 4
_SETTINGS = {
    # A lost instance, which does not answer at all, is detected in about two seconds, not in fourteen; a busy
    # one has ten to answer.
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
    "agent_register_timeout_ms": 120_000,
    # Workers stay in the group of their raylet.
    "process_group_cleanup_enabled": False,
}


class LocalInstances:
    """A Ray cluster on this machine alone, listening on 127.0.0.1. A run joins it by `runtime.cluster`.

    All instances state their market (`ray.io/market-type`), so the run's trainer, scorers and other
    reserved workers run on the reserved one, and each spot instance has one spot worker.

    Args:
        reserved_cpus: number of processes on the reserved instance: reserved workers and scorers.
        reserved_gpus: GPUs that it claims to have, for tests of code that counts them.

    Attributes:
        address: address of the cluster, for `runtime.cluster`.
    """

    def __init__(self, reserved_cpus: int, reserved_gpus: int = 0) -> None:
        ports = _free_ports()
        head = _arguments(reserved_cpus, reserved_gpus, "on-demand") | {
            "include_dashboard": False,
            "_system_config": _SETTINGS,
        }
        with kept_signal_handlers(), without_api_server(), _instance_of_its_own(ports):
            self._cluster = RayNodes(initialize_head=True, head_node_args=head | ports)
        # Else each instance would take over the process's SIGTERM, which only the main thread can do, and end
        # with the thread that started it. Without the reserved one they end by themselves.
        self._cluster._shutdown_at_exit = False
        self.address = str(self._cluster.address)
        self._nodes: dict[str, Node] = {}
        atexit.register(self._remove_all)

    @property
    def names(self) -> list[str]:
        """Names of the current spot instances, in order of arrival."""
        return list(self._nodes)

    def add(self, name: str, gpus: int = 0) -> None:
        """Start a spot instance, and wait until the cluster knows it.

        Args:
            gpus: GPUs that it claims to have, with a worker for each; one worker if it has none.

        Raises:
            RuntimeFailure: if an instance of that name exists, or it does not start.
        """
        if name in self._nodes:
            raise RuntimeFailure(f"instance {name!r} already exists; remove it first")
        before = set(_raylets())
        reason: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                ports = _free_ports()
                with _instance_of_its_own(ports):
                    self._nodes[name] = self._cluster.add_node(
                        **_arguments(max(1, gpus), gpus, "spot"), **ports
                    )
                return
            except Exception as error:  # Ray's only type where a raylet is slow to start
                if "timed out" not in str(error):
                    raise
                reason = error
                for raylet in set(_raylets()) - before:
                    with suppress(ProcessLookupError):
                        os.killpg(raylet, signal.SIGKILL)
        raise RuntimeFailure(
            f"instance {name!r} did not start in {_ATTEMPTS} attempts of half a minute: {reason}; "
            "the machine is too busy, or out of memory"
        ) from reason

    def warn(self, name: str) -> None:
        """Give the instance's workers notice like Kubernetes, by SIGTERM.

        They stop at the next denoising step if `runtime.notices` is `kubernetes`; otherwise they end.

        Raises:
            RuntimeFailure: if no instance has that name.
        """
        raylet = psutil.Process(self._process_group(name))
        for process in raylet.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                # The raylet's agents are not workers, and it ends itself when they do.
                command = " ".join(process.cmdline())
                if command.startswith("ray::") and "Agent" not in command:
                    process.terminate()

    def remove(self, name: str) -> None:
        """Take the instance away, by SIGKILL for all its processes at once.

        Raises:
            RuntimeFailure: if no instance has that name.
        """
        group = self._process_group(name)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        # Ray's own bookkeeping: wait for the raylet's end, and delete what it left in memory.
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def close(self) -> None:
        """End all instances."""
        atexit.unregister(self._remove_all)
        self._remove_all()
        self._cluster.shutdown()

    def _remove_all(self) -> None:
        for name in self.names:
            self.remove(name)

    def _process_group(self, name: str) -> int:
        if name not in self._nodes:
            raise RuntimeFailure(f"no instance {name!r}; there are: {', '.join(self.names) or 'none'}")
        (raylet,) = self._nodes[name].all_processes["raylet"]
        return int(raylet.process.pid)


def _arguments(cpus: int, gpus: int, market: str) -> dict[str, Any]:
    return {
        "node_ip_address": LOOPBACK,
        "num_cpus": cpus,
        "num_gpus": gpus,
        "object_store_memory": _STORE_BYTES,
        "labels": {MARKET_LABEL: market},
    }


def _free_ports() -> dict[str, Any]:
    """Return free ports for the agents of a raylet, by Ray's names for them."""
    agents = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", _LISTEN_PORT)
    ports: dict[str, Any] = {}
    chance = random.SystemRandom()
    with ExitStack() as held:  # until all are chosen
        while len(ports) < len(agents):
            port = chance.choice(_AGENT_PORTS)
            probe = held.enter_context(socket.socket())
            with suppress(OSError):  # it is taken
                probe.bind((LOOPBACK, port))
                ports[agents[len(ports)]] = port
    return ports


def _raylets() -> list[int]:
    """Return the raylets below this process; each leads its group, except the reserved instance's."""
    children = psutil.Process().children()
    return [process.pid for process in children if process.name() == "raylet"]


@contextmanager
def _instance_of_its_own(ports: dict[str, int]) -> Iterator[None]:
    """Make started Ray processes lead a process group, and tell raylets their agents' ports.

    Ray has no setting for it. Otherwise a raylet waits until its agents have chosen their ports, and ends
    itself if that takes 15 seconds, as it may on a busy machine.
    """
    plain = services.ConsolePopen

    class _Leading(plain):
        def __init__(self, command: list[str], *args: Any, **kwargs: Any) -> None:
            if command[0] == services.RAYLET_EXECUTABLE:
                command = [*command, f"--{_LISTEN_PORT}={ports[_LISTEN_PORT]}"]
            super().__init__(command, *args, process_group=0, **kwargs)

    services.ConsolePopen = _Leading
    try:
        yield
    finally:
        services.ConsolePopen = plain
