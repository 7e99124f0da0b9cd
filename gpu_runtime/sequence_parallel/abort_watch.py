"""The watch threads of a member, which free the main thread when its group is called off."""

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
    """A watch over one group at a time for the life of its process, with separate threads and connections.

    Args:
        address: address of the driver's store.
        device: device of the group's tensors.
        connect_s: longest wait for the store.
    """

    def __init__(self, address: StoreAddress, device: torch.device, connect_s: float) -> None:
        # A connection serves one call at a time, and the one that waits for the next abort is busy.
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
        """True if the store stopped answering: no more work will come."""
        for work in (self._await_aborts, self._look_regularly):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def guard(self, prefix: str) -> None:
        """Watch a group from now on, beginning while it is being formed."""
        with self._lock:
            self._prefix, self._broken, self._forming = prefix, False, True

    def formed(self) -> None:
        """Note that all members are present: from now on they wait for each other, not at the store."""
        with self._lock:
            self._forming = False

    def release(self) -> bool:
        """Stop watching the group; after this returns, its sockets are no longer touched.

        Returns:
            True if the member's connection to the store was shut down, to free it while the group was formed.
        """
        with self._lock:
            self._prefix = None
            shut, self._shut = self._shut, False
        return shut

    @property
    def broken(self) -> bool:
        """True if the guarded group has been broken off."""
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
        # The other thread misses aborts while its process is stopped; this one finds them later.
        try:
            while True:
                time.sleep(_LOOK_S)
                self._looking.check([ABORTS])  # notices a store that is gone, even while no group is guarded
                self._look(self._looking)
        except (dist.DistError, RuntimeError):
            self._lose_driver()

    def _look(self, store: dist.TCPStore) -> bool:
        """Free the main thread if its group is broken off; return True if it may have to be freed again."""
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
        """Note that the store is gone, and the driver with it; peers that wait for this one learn it too."""
        self.driver_gone = True
        with self._lock:
            self._free()

    def _free(self) -> None:
        if self._prefix is not None:
            interrupt(self._device)
            if self._forming:  # a connection that is not in the way is kept: a new one can take seconds
                group_sockets.shut_down_connections_to(self._port, self._own_ports)
                self._shut = True
