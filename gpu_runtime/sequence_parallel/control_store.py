"""The driver's key-value store, at which groups meet and are called off, and its address, which workers get.

A driver whose devices work alone imports this without torch.

A group's keys are under its prefix and are removed some groups after it ended. `aborts` counts
the calls to break off, and `abort/N` wakes the members that wait for the N-th.
"""

from __future__ import annotations

import datetime
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import GroupBrokenError

if TYPE_CHECKING:
    import torch.distributed as dist

ABORTS = "aborts"
_KEPT_GROUPS = 8  # ended groups whose keys stay a while, for members that are slow to leave
_KEPT_ABORTS = 8


def aborted_key(prefix: str) -> str:
    """Return the key that is set when a group is called off."""
    return f"{prefix}aborted"


def abort_key(number: int) -> str:
    """Return the key that appears with the number-th call to break off."""
    return f"abort/{number}"


@dataclass(frozen=True)
class StoreAddress:
    """The address at which the driver's key-value store listens."""

    host: str
    port: int

    def connect(self, timeout_s: float) -> dist.TCPStore:
        """Open a new connection.

        Raises:
            GroupBrokenError: if the store does not answer in time.
        """
        import torch.distributed as dist

        try:
            return dist.TCPStore(
                self.host, self.port, is_master=False, timeout=datetime.timedelta(seconds=timeout_s)
            )
        except (dist.DistError, RuntimeError) as error:
            raise GroupBrokenError(
                f"no store of a driver at {self.host}:{self.port} within {timeout_s} s: {error}"
            ) from error


class ControlStore:
    """The store, on one address of this machine, which the driver holds and members connect to."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        import torch.distributed as dist

        # By itself, torch's store listens on all addresses, whatever host it is given.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=socket.SOMAXCONN)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self.address = StoreAddress(host, port)
        self._ended: deque[str] = deque()

    def abort(self, prefix: str) -> None:
        """Break a group off: free its members wherever they wait for each other."""
        # The flag goes first: a member that wakes must find it.
        self._store.set(aborted_key(prefix), "1")
        number = self._store.add(ABORTS, 1)
        self._store.set(abort_key(number), prefix)
        self._store.delete_key(abort_key(number - _KEPT_ABORTS))

    def ended(self, prefix: str) -> None:
        """Note that a group has ended; its keys are removed after some more groups have ended."""
        self._ended.append(prefix)
        while len(self._ended) > _KEPT_GROUPS:
            oldest = self._ended.popleft()
            for key in self._store.list_keys():
                if key.startswith(oldest):
                    self._store.delete_key(key)
