"""A member's other threads: one shows that it lives, one frees the main thread of a group broken off."""

from __future__ import annotations

import contextlib
import datetime
import threading

import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel import group_sockets
from gpu_runtime.sequence_parallel.control_store import ABORTS, abort_key, aborted_key, beat_key, call_all
from gpu_runtime.sequence_parallel.process_group import StoreAddress, interrupt

_BEAT_S = 0.25
_AGAIN_S = 0.02  # between attempts to free a thread that forms its group, and so opens new sockets
_FOREVER = datetime.timedelta(days=365)


class AbortWatch:
    """Watches one group at a time, in threads of its own, over connections of its own.

    Args:
        address: of the controller's store.
        member: this process's name.
        device: where the group's tensors lie.
        timeout_s: longest wait for the store.
    """

    def __init__(self, address: StoreAddress, member: str, device: torch.device, timeout_s: float) -> None:
        # A connection serves one call at a time, and the one that waits for the next abort is in a call.
        self._waiting = address.connect(timeout_s)
        self._beating = address.connect(timeout_s)
        self._own_ports = group_sockets.local_ports_to(address.port)
        self._port = address.port
        self._device = device
        self._beat_key = beat_key(member)
        self._lock = threading.Lock()
        self._prefix: str | None = None
        self._broken = False
        self._forming = False
        self._closed = threading.Event()
        self.controller_gone = False
        """Whether the store stopped answering: nobody will send work any more."""
        self._beating.set(self._beat_key, "0")
        self._threads = [
            threading.Thread(target=work, name=f"{work.__name__}-{member}", daemon=True)
            for work in (self._await_aborts, self._beat)
        ]
        for thread in self._threads:
            thread.start()

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
        """End the threads."""
        self._closed.set()
        self._threads[1].join()
        # Wakes our other thread; those of other members look and wait again. Without a store it has ended.
        with contextlib.suppress(RuntimeError):
            call_all(self._beating, "")
        self._threads[0].join()

    def _await_aborts(self) -> None:
        try:
            while not self._closed.is_set():
                known = self._waiting.add(ABORTS, 0)
                while self._look(self._waiting) and not self._closed.wait(_AGAIN_S):
                    pass
                if not self._closed.is_set():  # set before the last call is counted
                    self._waiting.wait([abort_key(known + 1)], _FOREVER)
        except (dist.DistError, RuntimeError):
            self._lose_controller()

    def _beat(self) -> None:
        beats = 0
        try:
            while not self._closed.wait(_BEAT_S):
                beats += 1
                self._beating.set(self._beat_key, str(beats))
                # The other thread misses aborts while its process is stopped; this one finds them late.
                self._look(self._beating)
        except (dist.DistError, RuntimeError):
            self._lose_controller()

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

    def _lose_controller(self) -> None:
        """The store is gone, and the controller with it; peers that wait for us will learn it as well."""
        if not self._closed.is_set():
            self.controller_gone = True
            with self._lock:
                self._free()

    def _free(self) -> None:
        if self._prefix is not None:
            interrupt(self._device)
            if self._forming:  # a connection that is not in the way is kept: a new one can take seconds
                group_sockets.shut_down_connections_to(self._port, self._own_ports)
