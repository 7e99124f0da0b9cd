"""The address of a Ray cluster, looked at before Ray is: neither ray nor torch is needed."""

from __future__ import annotations

import socket

from storage.errors import ConfigurationError, quoted

_CONNECT_LIMIT_S = 5.0
_LARGEST_PORT = 65_535
_LEFT_TO_RAY = ("auto", "local")


def refuse_silent_address(address: str) -> None:
    """Refuse what is no address, and a `HOST:PORT` where nothing listens; Ray would wait a minute to say so.

    Raises:
        ConfigurationError: if nothing listens there. `auto`, `local` and `ray://HOST:PORT` are left to Ray.
    """
    if not address or address in _LEFT_TO_RAY:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= _LARGEST_PORT:
        raise ConfigurationError(
            f"runtime.cluster = {quoted(address)} is no address of a Ray cluster; give HOST:PORT, "
            "ray://HOST:PORT or auto, or ray for one of this machine"
        )
    if "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_LIMIT_S).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
        raise ConfigurationError(
            f"no Ray cluster answers at runtime.cluster = {quoted(address)}: {error}; start one with "
            f"`ray start --head --port {port}`, or set runtime.cluster=ray for one of this machine"
        ) from error
