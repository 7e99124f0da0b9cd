"""A member's second thread: shows that it lives, and frees the first one when its group is broken off."""

from __future__ import annotations

import datetime
import threading

import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel import group_sockets
from gpu_runtime.sequence_parallel.control_store import ABORTS, abort_key, aborted_key, beat_key
from gpu_runtime.sequence_parallel.process_group import StoreAddress, interrupt

_BEAT_S = 0.25
_AGAIN_S = 0.02  # between attempts to free a thread that forms its group, and so opens new sockets


class AbortWatch:
    """Watches one group at a time, in a thread of its own, over a connection of its own.

    Args:
        address: of the controller's store.
        member: this process's name.
        device: where the group's tensors lie.
        timeout_s: longest wait for the store.
    """

    def __init__(self, address: StoreAddress, member: str, device: torch.device, timeout_s: float) -> None:
        self._store = address.connect(timeout_s)
        self._port = address.port
        # This thread's connection must survive when those of the group are shut down.
        self._own_ports = group_sockets.local_ports_to(address.port)
        self._device = device
        self._beat_key = beat_key(member)
        self._lock = threading.Lock()
        self._prefix: str | None = None
        self._broken = False
        self._forming = False
        self._closed = threading.Event()
        self.controller_gone = False
        """Whether the store stopped answering: nobody will send work any more."""
        self._store.set(self._beat_key, "0")
        self._thread = threading.Thread(target=self._run, name=f"abort-watch-{member}", daemon=True)
        self._thread.start()

    def guard(self, prefix: str) -> None:
        """Watch a group from now on, first of all while it is being formed."""
        with self._lock:
            self._prefix, self._broken, self._forming = prefix, False, True

    def formed(self) -> None:
        """All members are there: from now on they wait for each other, and not at the store."""
        with self._lock:
            self._forming = False

    def release(self) -> None:
        """The group is left; after this returns, none of its sockets is touched any more."""
        with self._lock:
            self._prefix = None

    @property
    def broken(self) -> bool:
        """Whether the guarded group has been broken off."""
        return self._broken or self.controller_gone

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        beats = 0
        known = 0
        try:
            while not self._closed.is_set():
                again = self._look()
                self._await(abort_key(known + 1), _AGAIN_S if again else _BEAT_S)
                known = self._store.add(ABORTS, 0)
                beats += 1
                self._store.set(self._beat_key, str(beats))
        except (dist.DistError, RuntimeError):
            # The store is gone, and the controller with it; peers that wait for us will learn it as well.
            self.controller_gone = True
            with self._lock:
                self._free()

    def _await(self, key: str, seconds: float) -> None:
        try:
            self._store.wait([key], datetime.timedelta(seconds=seconds))
        except dist.DistStoreError:
            return  # nothing happened

    def _look(self) -> bool:
        """Free the other thread if its group is broken off; whether it may have to be freed again."""
        prefix = self._prefix
        if prefix is None or not self._store.check([aborted_key(prefix)]):
            return False
        with self._lock:
            if self._prefix != prefix:
                return False
            self._broken = True
            self._free()
        return True

    def _free(self) -> None:
        if self._prefix is not None:
            interrupt(self._device)
            if self._forming:  # a connection that is not in the way is kept: a new one can take seconds
                group_sockets.shut_down_connections_to(self._port, self._own_ports)
