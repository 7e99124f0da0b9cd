"""One device's part in sequence-parallel groups: join, denoise, move to another group.

Watch threads free the main thread when its group is called off. Nothing here depends on how the process was
started or how it is called.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.sequence_parallel.control_store import ABORTS, StoreAddress, abort_key, aborted_key
from gpu_runtime.sequence_parallel.process_group import (
    InstanceGroup,
    interrupt,
    is_group_failure,
    local_ports_to,
    shut_down,
)
from gpu_runtime.sequence_parallel.sequence_shape import SequenceShape
from gpu_runtime.sequence_parallel.ulysses import SharedSequence, shape_of
from storage.errors import GroupBrokenError, WorkerLostError

_LOOK_S = 0.25
_AGAIN_S = 0.02  # between attempts to free a thread that forms its group, and so opens new sockets
_FOREVER = datetime.timedelta(days=365)

ResultT = TypeVar("ResultT")


class SequenceParallelMember:
    """A model and this process's place in a group; only the place changes.

    All methods are called from one thread. Those that wait for peers raise `GroupBrokenError` when the
    driver breaks the group off or a peer dies; then the member is in no group and can join another.

    Args:
        address: address of the driver's store; connected to at once, before others wait for this device:
            for each new connection torch looks names up, which can take five seconds.
        connect_s: longest wait for the store.

    Attributes:
        name: name as given; a standby gets another one with its place.
    """

    def __init__(self, name: str, model: DiffusionModel, address: StoreAddress, connect_s: float) -> None:
        self.name = name
        self._model = model
        self._address = address
        self._shape: SequenceShape | None = None
        self._place: WorkerGroup | None = None
        self._group: InstanceGroup | None = None
        self._shared: SharedSequence | None = None
        self._watch = AbortWatch(address, model.device, connect_s)
        self._store: dist.TCPStore | None = address.connect(connect_s)

    @property
    def epoch(self) -> int | None:
        """The epoch of this member's group; None while it is in none."""
        return None if self._place is None else self._place.epoch

    @property
    def leads(self) -> bool:
        """True if this member is its group's leader."""
        return self._place is not None and self._place.leader == self.name

    def join(self, group: WorkerGroup, timeout_s: float) -> None:
        """Leave the current group and form another.

        Args:
            timeout_s: longest wait for a peer, now and later, unless the group is broken off before: a
                backstop.

        Raises:
            GroupBrokenError: if it was broken off before all were present.
            ConfigurationError: if the model's sequences do not divide by its degree.
        """
        self.leave()
        degree = len(group.members)
        self._sequence_shape().check(degree)
        if degree > 1:
            self._watch.guard(group.prefix)
            try:
                self._group = self._meet(group, timeout_s)
                self._shared = SharedSequence(self._model.transformer, self._group, self._sequence_shape())
            except BaseException:
                self.leave()
                raise
            self._watch.formed()
        self._place = group

    def together(self, epoch: int, work: Callable[[], ResultT]) -> ResultT:
        """Do something that every member of a group does at the same time.

        Args:
            work: function to call; it uses the model, and may call `any_true`.

        Raises:
            GroupBrokenError: if the member is in another group, or this one broke.
            WorkerLostError: if `work` raises it; the member is then still in its group.
        """
        if epoch != self.epoch:
            raise GroupBrokenError(f"{self.name} is in the group of epoch {self.epoch}, not of {epoch}")
        try:
            result = work()
            if self._group is not None and self._group.cut_off:
                raise GroupBrokenError("called off while it computed")
            return result
        except WorkerLostError:  # the device is faulty, whatever became of its group
            raise
        except Exception as error:
            # A broken-off group can cause any error, even non-finite numbers.
            if self._group is None or not (self._watch.broken or is_group_failure(error)):
                raise
            reason = str(error).partition("\n")[0]
            interrupt(self._model.device)
            self.leave()
            raise GroupBrokenError(f"the group of epoch {epoch} broke at {self.name}: {reason}") from None

    def any_true(self, said: bool) -> bool:
        """Return True for all members if any passes True; all must call this at the same point."""
        return said if self._group is None else self._group.any_true(said)

    def leave(self) -> None:
        """Leave the group, if any, without waiting for another member, as one of them may hang."""
        self._place = None
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()
        group, self._group = self._group, None
        if group is not None:
            group.close()
        if self._watch.release():
            self._store = None

    def _meet(self, group: WorkerGroup, timeout_s: float) -> InstanceGroup:
        rank, degree = group.rank(self.name), len(group.members)
        try:
            store = self._store = self._store or self._address.connect(timeout_s)
            aborted = store.check([aborted_key(group.prefix)])  # before the watch began
        except RuntimeError as error:  # the watch has seen the abort, and shut the connection down
            raise GroupBrokenError(f"group {group.prefix} was broken off: {error}") from error
        if aborted:
            raise GroupBrokenError(f"group {group.prefix} was broken off before it was formed")
        return InstanceGroup(
            store, group.prefix, rank, degree, timeout_s, self._model.device, lambda: self._watch.broken
        )

    def _sequence_shape(self) -> SequenceShape:
        if self._shape is None:
            self._shape = shape_of(self._model.transformer, *self._model.sequence_lengths())
        return self._shape


class AbortWatch:
    """A watch over one group at a time for the life of its process, with separate threads and connections."""

    def __init__(self, address: StoreAddress, device: torch.device, connect_s: float) -> None:
        # A connection serves one call at a time, and the one that waits for the next abort is busy.
        self._waiting = address.connect(connect_s)
        self._looking = address.connect(connect_s)
        self._own_ports = local_ports_to(address.port)
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
        """Stop watching, and touching sockets; True if the connection to the store was shut meanwhile."""
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
                shut_down(lambda one: one.peer_port == self._port and one.own_port not in self._own_ports)
                self._shut = True
