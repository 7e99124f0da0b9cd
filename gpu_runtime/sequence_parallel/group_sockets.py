"""Finding the connected sockets of a process group in this process, and shutting them down.

gloo has no call that frees a member blocked on a silent peer before the time-out. Shutting its
sockets down does, within milliseconds, unless a message is cut off midway (`process_group.py`). They are
distinguished from all other sockets of the process (such as Ray's) by an address of the loopback network
that nothing else uses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

GROUP_ADDRESS = "127.83.80.1"
"""Address that a group's members listen on. Groups stay within an instance, so loopback suffices."""


def shut_down_group() -> int:
    """Shut down this process's connections of its group; return how many."""
    return sum(_shut(connection) for connection in _connections() if GROUP_ADDRESS in connection.hosts)


def shut_down_connections_to(host_port: int, except_local_ports: frozenset[int]) -> int:
    """Shut down connections to a port of any host, except those with some local ports; return how many."""
    return sum(
        _shut(connection)
        for connection in _connections()
        if connection.peer_port == host_port and connection.own_port not in except_local_ports
    )


def local_ports_to(host_port: int) -> frozenset[int]:
    """Return the local ports of this process's connections to a port."""
    return frozenset(found.own_port for found in _connections() if found.peer_port == host_port)


class _Connection(NamedTuple):
    """A connected socket, and its ends as they were when it was found: a peer may leave at any moment.

    Attributes:
        socket: duplicate of the socket.
        hosts: addresses of both ends.
        own_port, peer_port: ports of the ends.
    """

    socket: socket.socket
    hosts: tuple[str, str]
    own_port: int
    peer_port: int


def _connections() -> Iterator[_Connection]:
    """Yield duplicates of this process's connected internet sockets; each is closed after its turn."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed by another thread meanwhile
            continue
        with duplicate:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                own, peer = duplicate.getsockname(), duplicate.getpeername()
            except OSError:  # not connected, or no longer
                continue
            hosts = own[0].removeprefix("::ffff:"), peer[0].removeprefix("::ffff:")
            yield _Connection(duplicate, hosts, own[1], peer[1])


def _shut(connection: _Connection) -> bool:
    try:
        connection.socket.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer was faster
        return False
    return True
