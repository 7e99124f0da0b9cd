"""The driver's key-value store: where groups meet and are called off.

Keys: those of a group lie under its prefix and are removed some epochs after it ended. `aborts` counts
the calls to break off, and `abort/N` wakes the members that wait for the N-th.
"""

from __future__ import annotations

import socket
from collections import deque

import torch.distributed as dist

from gpu_runtime.sequence_parallel.store_address import StoreAddress

ABORTS = "aborts"
_KEPT_GROUPS = 8  # ended groups whose keys stay a while, for members that are slow to leave
_KEPT_ABORTS = 8


def aborted_key(prefix: str) -> str:
    """Set while a group is called off."""
    return f"{prefix}aborted"


def abort_key(number: int) -> str:
    """Appears with the number-th call to break off."""
    return f"abort/{number}"


class ControlStore:
    """Held by the driver; members connect to it.

    Args:
        host: address of this machine to listen on, and on no other; groups of other instances must reach it.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        # Left to itself, torch's store listens on all addresses, whatever host it is given.
        listener = socket.create_server((host, 0), family=_family(host), backlog=socket.SOMAXCONN)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self.address = StoreAddress(host, port)
        self._ended: deque[str] = deque()

    def abort(self, prefix: str) -> None:
        """Break a group off: its members are freed wherever they wait for each other."""
        # The flag goes first: a member that wakes must find it.
        self._store.set(aborted_key(prefix), "1")
        number = self._store.add(ABORTS, 1)
        self._store.set(abort_key(number), prefix)
        self._store.delete_key(abort_key(number - _KEPT_ABORTS))

    def ended(self, prefix: str) -> None:
        """A group has ended; its keys go when some more have."""
        self._ended.append(prefix)
        while len(self._ended) > _KEPT_GROUPS:
            oldest = self._ended.popleft()
            for key in self._store.list_keys():
                if key.startswith(oldest):
                    self._store.delete_key(key)


def _family(host: str) -> socket.AddressFamily:
    """IPv4 or IPv6."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
