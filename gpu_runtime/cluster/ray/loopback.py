"""Ray on 127.0.0.1 alone, for clusters that are entirely on this machine.

Each of Ray's servers listens on 127.0.0.1 if that is the address of its node, and on all addresses of the
machine otherwise. Ray has no setting for it on Linux: it replaces a given loopback address by one that other
machines can reach. It does not do so if `ENABLE_RAY_CLUSTER` rules out other machines, as by default on macOS
and Windows.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import ray
from ray._private import ray_constants, services

LOOPBACK = "127.0.0.1"

_CONNECT_LIMIT_S = 5.0
_LOOPBACK_HOSTS = ("localhost", LOOPBACK, "::1")


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

    As in Ray, it is looked for in the variable RAY_ADDRESS, then among the processes of this machine.

    Args:
        address: value of `runtime.cluster`.

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
