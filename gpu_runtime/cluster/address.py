"""Checks of a Ray cluster's address and local folder, before Ray or torch is imported."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from storage.errors import ConfigurationError, quoted

_CONNECT_LIMIT_S = 5.0
_LARGEST_PORT = 65_535
_LEFT_TO_RAY = ("auto", "local")
_LONGEST_SOCKET = 107
"""Largest number of bytes in the path of a Unix socket."""


def refuse_silent_address(address: str) -> None:
    """Refuse invalid addresses and a `HOST:PORT` where nothing listens, which Ray reports after a minute.

    Raises:
        ConfigurationError: if nothing listens there. `auto`, `local` and `ray://HOST:PORT` are left to Ray.
    """
    if not address or address in _LEFT_TO_RAY:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= _LARGEST_PORT:
        raise ConfigurationError(
            f"runtime.cluster = {quoted(address)} is not the address of a Ray cluster; give HOST:PORT, "
            "ray://HOST:PORT or auto, or ray for one of this machine"
        )
    if "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_LIMIT_S).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: not a host name
        raise ConfigurationError(
            f"no Ray cluster answers at runtime.cluster = {quoted(address)}: {error}; start one with "
            f"`ray start --head --port {port}`, or set runtime.cluster=ray for one of this machine"
        ) from error


def ray_folder() -> Path:
    """Return the folder in which Ray keeps the logs and sockets of clusters started on this machine."""
    variables = ("RAY_TMPDIR", "TMPDIR") if sys.platform.startswith("linux") else ("RAY_TMPDIR",)
    return Path(next((os.environ[name] for name in variables if name in os.environ), "/tmp")) / "ray"


def refuse_unusable_folder() -> None:
    """Refuse a Ray folder whose path is too long for its sockets, as Slurm's may be, or that is not writable.

    Raises:
        ConfigurationError: if the folder is unusable; the message names the setting to change.
    """
    folder = ray_folder()
    advice = "set RAY_TMPDIR to a short folder that this user can write, or runtime.cluster=local"
    socket_path = folder / f"session_2026-01-01_00-00-00_000000_{os.getpid()}" / "sockets" / "plasma_store"
    length = len(os.fsencode(socket_path))
    if length > _LONGEST_SOCKET:
        raise ConfigurationError(
            f"Ray would keep its sockets in {folder}, {length} bytes in all, but the system allows at most "
            f"{_LONGEST_SOCKET}; {advice}"
        )
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"Ray would keep its logs and sockets in {folder}, but {there} is not writable; {advice}"
        )
