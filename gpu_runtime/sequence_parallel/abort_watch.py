"""A member's other threads: they free the main thread when its group is called off."""

from __future__ import annotations

import datetime
import threading
import time

import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel import group_sockets
from gpu_runtime.sequence_parallel.control_store import ABORTS, abort_key, aborted_key
from gpu_runtime.sequence_parallel.process_group import interrupt
from gpu_runtime.sequence_parallel.store_address import StoreAddress

_LOOK_S = 0.25
_AGAIN_S = 0.02  # between attempts to free a thread that forms its group, and so opens new sockets
_FOREVER = datetime.timedelta(days=365)


class AbortWatch:
    """Watches one group at a time for the life of its process, in threads and over connections of its own.

    Args:
        address: of the driver's store.
        device: where the group's tensors lie.
        connect_s: longest wait for the store.
    """

    def __init__(self, address: StoreAddress, device: torch.device, connect_s: float) -> None:
        # A connection serves one call at a time, and the one that waits for the next abort is in a call.
        self._waiting = address.connect(connect_s)
        self._looking = address.connect(connect_s)
        self._own_ports = group_sockets.local_ports_to(address.port)
        self._port = address.port
        self._device = device
        self._lock = threading.Lock()
        self._prefix: str | None = None
        self._broken = False
        self._forming = False
        self._shut = False
        self.driver_gone = False
        """Whether the store stopped answering: no more work will come."""
        for work in (self._await_aborts, self._look_regularly):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def guard(self, prefix: str) -> None:
        """Watch a group from now on, first of all while it is being formed."""
        with self._lock:
            self._prefix, self._broken, self._forming = prefix, False, True

    def formed(self) -> None:
        """All members are there: from now on they wait for each other, and not at the store."""
        with self._lock:
            self._forming = False

    def release(self) -> bool:
        """The group is left; after this returns, none of its sockets is touched any more.

        Returns:
            Whether the member's connection to the store was shut down, to free it while the group was formed.
        """
        with self._lock:
            self._prefix = None
            shut, self._shut = self._shut, False
        return shut

    @property
    def broken(self) -> bool:
        """Whether the guarded group has been broken off."""
        return self._broken or self.driver_gone

    def _await_aborts(self) -> None:
        try:
            while True:
                known = self._waiting.add(ABORTS, 0)
                while self._look(self._waiting):
                    time.sleep(_AGAIN_S)
                self._waiting.wait([abort_key(known + 1)], _FOREVER)
        except (dist.DistError, RuntimeError):
            self._lose_driver()

    def _look_regularly(self) -> None:
        # The other thread misses aborts while its process is stopped; this one finds them late.
        try:
            while True:
                time.sleep(_LOOK_S)
                self._looking.check([ABORTS])  # notices a store that is gone, also while no group is guarded
                self._look(self._looking)
        except (dist.DistError, RuntimeError):
            self._lose_driver()

    def _look(self, store: dist.TCPStore) -> bool:
        """Free the main thread if its group is broken off; whether it may have to be freed again."""
        prefix = self._prefix
        if prefix is None or not store.check([aborted_key(prefix)]):
            return False
        with self._lock:
            if self._prefix != prefix:
                return False
            self._broken = True
            self._free()
        return True

    def _lose_driver(self) -> None:
        """The store is gone, and the driver with it; peers that wait for us will learn it as well."""
        self.driver_gone = True
        with self._lock:
            self._free()

    def _free(self) -> None:
        if self._prefix is not None:
            interrupt(self._device)
            if self._forming:  # a connection that is not in the way is kept: a new one can take seconds
                group_sockets.shut_down_connections_to(self._port, self._own_ports)
                self._shut = True
