"""Ray's private parts that a run needs: listening addresses, signal handlers, draining and processes.

Each of Ray's servers listens on 127.0.0.1 if that is its node's address, otherwise on all of the machine's
addresses. On Linux Ray has no setting for it: it replaces a given loopback address by one that other machines
can reach, unless `ENABLE_RAY_CLUSTER` rules out other machines, as by default on macOS and Windows.

A drained instance will be taken: Ray starts nothing more there. A drain cannot be undone, and a draining
instance ends itself once it has no worker.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import psutil
import ray
from ray._private import ray_constants, services
from ray._private import utils as ray_utils
from ray._private.node import Node
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.core.generated.autoscaler_pb2 import (
    DrainNodeReason,  # pyright: ignore[reportAttributeAccessIssue]
)
from ray.exceptions import RayError

from storage.processes import ENDING_SIGNALS

LOOPBACK = "127.0.0.1"

_CONNECT_LIMIT_S = 5.0
_LOOPBACK_HOSTS = ("localhost", LOOPBACK, "::1")

_DRAIN_LIMIT_S = 5.0
"""Seconds for Ray's head to answer; the instance may have half a minute left."""

_MARKS = {
    "Ray's GCS server": ("gcs/gcs_server",),
    "Ray's raylet": ("raylet/raylet",),
    # Each has its own title once it is up.
    "Ray's dashboard agent": ("ray::DashboardAgent", "dashboard/agent.py"),
    "Ray's runtime environment agent": ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
}

_SignalHandler = Callable[[int, FrameType | None], Any] | int | None


@contextmanager
def on_loopback_alone() -> Iterator[None]:
    """Make Ray listen and look for clusters on 127.0.0.1 within this context."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def without_api_server() -> Iterator[None]:
    """Make Ray start no API server within this context; without a dashboard it only serves usage reports.

    Even with these off, it asks the metadata services of three clouds which one it is on.
    """
    before = services.start_api_server
    services.start_api_server = lambda *_, **__: (None, None)
    try:
        yield
    finally:
        services.start_api_server = before


def found_address(address: str) -> str:
    """Return the address that Ray joins for a given one: `auto` is the running cluster of this machine.

    Like Ray, it checks the variable RAY_ADDRESS, then this machine's processes.

    Raises:
        ConnectionError: the address is `auto`, and no cluster runs here.
    """
    if address != "auto":
        return address
    cast(Any, services.find_gcs_addresses).cache_clear()  # it may hold a cluster that has ended since
    return str(services.get_ray_address_from_environment(address, None))


def is_on_loopback_alone(address: str) -> bool:
    """Return True if a cluster to join answers on this machine's loopback address and on no other.

    Args:
        address: result of `found_address`; False for anything but `HOST:PORT`, which is left to Ray.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or host.strip("[]") not in _LOOPBACK_HOSTS:
        return False
    try:
        socket.create_connection((ray.util.get_node_ip_address(), int(port)), _CONNECT_LIMIT_S).close()
    except OSError:
        return True
    return False


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """Keep this process's handlers while Ray starts or ends, which would replace the one for SIGTERM.

    A cancelled flow would then count as crashed; if cancelled while Ray starts, it would first wait half a
    minute for the cluster to empty. As Ray's core ends, it makes SIGTERM fatal: the handlers are restored
    before Ray ends its processes, which takes a second.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept: dict[int, _SignalHandler] = {number: signal.getsignal(number) for number in ENDING_SIGNALS}

    def put_back() -> None:
        for number, handler in kept.items():  # non-Python parts of Ray replace handlers, too
            signal.signal(number, handler)

    def end_processes(
        self: Node, check_alive: bool = True, allow_graceful: bool = False, wait: bool = False
    ) -> None:
        put_back()
        ends_processes(self, check_alive, allow_graceful, wait)

    takes_over, ends_processes = ray_utils.set_sigterm_handler, Node.kill_all_processes
    ray_utils.set_sigterm_handler = lambda sigterm_handler: None
    Node.kill_all_processes = end_processes
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler, Node.kill_all_processes = takes_over, ends_processes
        put_back()


def drain_instance(instance: str, reason: str, deadline: float | None) -> str:
    """Drain a Ray node by `deadline` (unix seconds); return why Ray does not, empty if it does.

    Args:
        instance: identifier of the node.
        reason: reason as text, which Ray shows.
        deadline: time at which it may be gone, in unix seconds; None if unknown.
    """
    preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline_ms = 0 if deadline is None else int(deadline * 1000)
    try:
        head = GcsClient(address=ray.get_runtime_context().gcs_address)
        accepted, why_not = head.drain_node(instance, preemption, reason, deadline_ms, timeout=_DRAIN_LIMIT_S)
    except (RayError, RuntimeError) as error:  # a head that does not answer must not end the run
        return str(error)
    return "" if accepted else why_not


def ray_processes() -> dict[str, int]:
    """Return name -> pid of Ray's processes that this process started.

    When one of them dies, Ray's core ends the driver without a message.
    """
    found: dict[str, int] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline()[:4])  # the raylet's arguments name its agents too
        except psutil.Error:
            continue
        for name, marks in _MARKS.items():
            if any(mark in line for mark in marks):
                found.setdefault(name, process.pid)
    return found
