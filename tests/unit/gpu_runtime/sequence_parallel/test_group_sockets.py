"""The sockets of a group, among those of the process."""

from __future__ import annotations

import socket
import struct

import pytest
import torch

from gpu_runtime.sequence_parallel import process_group
from gpu_runtime.sequence_parallel.process_group import GROUP_ADDRESS, interrupt, local_ports_to


def connected(host: str) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    with socket.create_server((host, 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def test_connections_of_the_group_alone_are_shut_down():
    ours, theirs = connected(GROUP_ADDRESS)
    other, its_peer = connected("127.0.0.1")
    with ours, theirs, other, its_peer:
        of_group = [found for found in process_group._connections() if GROUP_ADDRESS in found.hosts]
        assert len(of_group) == 2, "both ends are of this process"
        interrupt(torch.device("cpu"))
        assert ours.recv(1) == theirs.recv(1) == b""
        other.sendall(b"x")
        assert its_peer.recv(1) == b"x"
        assert other.getsockname()[1] in local_ports_to(its_peer.getsockname()[1])


def test_a_peer_may_go_while_its_connection_is_looked_at(monkeypatch):
    ours, theirs = connected(GROUP_ADDRESS)
    found = process_group._connections

    def and_the_peer_goes():
        for connection in found():
            if GROUP_ADDRESS in connection.hosts:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                theirs.close()  # with a reset: from now on our end has no peer
            yield connection

    monkeypatch.setattr(process_group, "_connections", and_the_peer_goes)
    with ours:
        interrupt(torch.device("cpu"))
        with pytest.raises(OSError, match="not connected"):
            ours.getpeername()
