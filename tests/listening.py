"""Who listens where: the addresses of processes, as the system tells them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import PurePath

import psutil


def listening(processes: Iterable[psutil.Process]) -> dict[str, set[str]]:
    """TCP addresses, IPv4 and IPv6, that processes listen on: `IP:PORT` -> who does, by command."""
    found: dict[str, set[str]] = {}
    for process in processes:
        try:
            sockets = process.net_connections("tcp")
            # Without the folders, which may be long, so that what is cut off is arguments.
            program, *rest = process.cmdline() or [process.name()]
            command = " ".join([PurePath(program).name, *rest])[:80]
        except psutil.NoSuchProcess:
            continue
        for one in sockets:
            if one.status == psutil.CONN_LISTEN:
                found.setdefault(f"{one.laddr.ip}:{one.laddr.port}", set()).add(command)
    return found


def beyond_this_machine(heard: dict[str, set[str]]) -> dict[str, set[str]]:
    """Those of the addresses that other machines could reach."""
    return {place: commands for place, commands in heard.items() if not _is_loopback(place)}


def kinds_of_ray(heard: dict[str, set[str]]) -> set[str]:
    """Which of the processes that Ray always has are among those that listen."""
    commands = " ".join(command for found in heard.values() for command in found)
    return {kind for kind in ("gcs_server", "raylet", "ray::") if kind in commands}


def _is_loopback(place: str) -> bool:
    address = ipaddress.ip_address(place.rpartition(":")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback  # ::ffff:127.0.0.1 is an IPv6 socket on 127.0.0.1
