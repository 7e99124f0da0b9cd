"""Ray on 127.0.0.1 alone, where all of a cluster is on this machine.

Each of Ray's servers listens on 127.0.0.1 if that is the address of its node, and on all addresses of the
machine otherwise. Ray has no setting for it on Linux: it replaces a loopback address that it is given by one
that other machines reach. It does not do so where `ENABLE_RAY_CLUSTER` says that there are no other machines,
as by default on macOS and Windows.
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
    """What Ray starts meanwhile listens on 127.0.0.1, and what it joins is looked for there."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def without_api_server() -> Iterator[None]:
    """What Ray starts meanwhile has no API server, which without a dashboard serves reports of use alone.

    Also where they are off, it asks the metadata services of three clouds which of them it is on.
    """
    before = services.start_api_server
    services.start_api_server = lambda *_, **__: (None, None)
    try:
        yield
    finally:
        services.start_api_server = before


def found_address(address: str) -> str:
    """The address that Ray joins for the one it is given: `auto` is the running cluster of this machine.

    Ray looks for it at the same places: the variable RAY_ADDRESS, then the processes of this machine.

    Args:
        address: as of `runtime.cluster`.

    Raises:
        ConnectionError: `auto`, and no cluster runs here.
    """
    if address != "auto":
        return address
    cast(Any, services.find_gcs_addresses).cache_clear()  # of a cluster that has ended since
    return str(services.get_ray_address_from_environment(address, None))


def is_on_loopback_alone(address: str) -> bool:
    """Whether a cluster that is to be joined answers on this machine's loopback address and on no other.

    Args:
        address: from `found_address`; what is no `HOST:PORT` is left to Ray.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or host.strip("[]") not in _LOOPBACK_HOSTS:
        return False
    try:
        socket.create_connection((ray.util.get_node_ip_address(), int(port)), _CONNECT_LIMIT_S).close()
    except OSError:
        return True
    return False
