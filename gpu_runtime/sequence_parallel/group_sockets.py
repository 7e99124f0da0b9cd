"""The connected sockets of a process group, found in this process and shut down.

gloo has no call that frees a member blocked on a silent peer before the time-out. Shutting its
sockets down does, within milliseconds, unless a message is cut off midway (`process_group.py`). They are
distinguished from all other sockets of the process (of Ray, say) by an address of the loopback network that
nothing else uses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

GROUP_ADDRESS = "127.83.80.1"
"""Where the members of a group listen. Groups never leave an instance, so the loopback network will do."""


def shut_down_group() -> int:
    """Shut down this process's connections of its group; returns how many."""
    return sum(_shut(connection) for connection in _connections() if _is_of_group(connection))


def shut_down_connections_to(host_port: int, except_local_ports: frozenset[int]) -> int:
    """Shut down connections to a port of a local or remote host, but not those with some local ports."""
    found = 0
    for connection in _connections():
        peer, own = _port(connection.getpeername()), _port(connection.getsockname())
        if peer == host_port and own not in except_local_ports:
            found += _shut(connection)
    return found


def local_ports_to(host_port: int) -> frozenset[int]:
    """Local ports of this process's connections to a port."""
    return frozenset(
        _port(connection.getsockname())
        for connection in _connections()
        if _port(connection.getpeername()) == host_port
    )


def _connections() -> Iterator[socket.socket]:
    """Duplicates of this process's connected internet sockets; each is closed after its turn."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed by another thread meanwhile
            continue
        with duplicate:
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and _connected(duplicate):
                yield duplicate


def _connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _is_of_group(connection: socket.socket) -> bool:
    ends = (connection.getsockname()[0], connection.getpeername()[0])
    return any(end.removeprefix("::ffff:") == GROUP_ADDRESS for end in ends)


def _port(address: tuple) -> int:
    return int(address[1])


def _shut(connection: socket.socket) -> bool:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer was faster
        return False
    return True
