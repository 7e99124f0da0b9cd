"""Addresses to listen on: is one free, and who can reach it."""

from __future__ import annotations

import ipaddress
import re
import socket

from storage.errors import ConfigurationError, ServerError

LOOPBACK = "127.0.0.1"
SERVER_PORT = 4200
"""The port that a Prefect server tries first."""


def refuse_taken_port(port: int, advice: str, host: str = LOOPBACK) -> None:
    """Refuse a port that a process listens on already.

    Args:
        port: to be listened on.
        advice: what to do about a taken one, such as "choose another with `--port`".
        host: address of this machine to listen on.

    Raises:
        ServerError: the port is in use, or the address is none of this machine.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(f"port {port} on {host} is in use ({error}); {advice}") from error


def is_free(port: int) -> bool:
    """Whether this port of this machine is free, on the loopback."""
    try:
        refuse_taken_port(port, "")
    except ServerError:
        return False
    return True


def check_host(host: str) -> None:
    """Refuse what is no IPv4 address.

    Raises:
        ConfigurationError: saying what an address looks like.
    """
    try:
        ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigurationError(
            f"--host {host} is no IPv4 address; 127.0.0.1 is this machine alone, 0.0.0.0 all its networks"
        ) from error


def check_name(name: str) -> None:
    """Refuse what is no name of a machine, such as an address with a scheme, a port or a path.

    Raises:
        ConfigurationError: saying what a name looks like.
    """
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
        raise ConfigurationError(
            f"--allow-host {name!r} is no host name; give it as in spot.example.org, without scheme or port"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return ipaddress.IPv4Address(host).is_loopback


def reachable(host: str) -> str:
    """The address at which this machine itself reaches what listens on `host`."""
    return LOOPBACK if ipaddress.IPv4Address(host).is_unspecified else host
