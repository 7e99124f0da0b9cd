"""Checks of addresses to listen on: whether a port is free, and who can reach it."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from storage.errors import ConfigurationError, ServerError

LOOPBACK = "127.0.0.1"
SERVER_PORT = 4200
"""The first port that a Prefect server tries."""


def refuse_taken_port(port: int, advice: str, host: str = LOOPBACK) -> None:
    """Refuse a port on which a process already listens.

    Args:
        advice: remedy for a taken port, such as "choose another with `--port`".

    Raises:
        ServerError: the port is in use, or the address does not belong to this machine.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(f"port {port} on {host} is in use ({error}); {advice}") from error


def is_free(port: int) -> bool:
    """Return True if this port is free on this machine's loopback."""
    try:
        refuse_taken_port(port, "")
    except ServerError:
        return False
    return True


def check_address(host: str, names: Sequence[str] = ()) -> None:
    """Refuse an address to listen on, or a further name to answer to, of another form.

    Raises:
        ConfigurationError: the text is no address, or no name; the message shows the form.
    """
    try:
        ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigurationError(
            f"--host {host} is no IPv4 address; 127.0.0.1 is this machine alone, 0.0.0.0 all its networks"
        ) from error
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
            raise ConfigurationError(
                f"--allow-host {name!r} is no host name; give it as in spot.example.org, without scheme or "
                "port"
            )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    return ipaddress.IPv4Address(host).is_loopback


def reachable(host: str) -> str:
    """Return the address at which this machine itself reaches a server that listens on `host`."""
    return LOOPBACK if ipaddress.IPv4Address(host).is_unspecified else host
