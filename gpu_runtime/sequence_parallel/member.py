"""What one device does in sequence-parallel groups: join, denoise, go over to another group.

Nothing here knows how the process was started or how it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.sequence_parallel.abort_watch import AbortWatch
from gpu_runtime.sequence_parallel.control_store import aborted_key
from gpu_runtime.sequence_parallel.process_group import InstanceGroup, is_group_failure
from gpu_runtime.sequence_parallel.sequence_shape import SequenceShape
from gpu_runtime.sequence_parallel.store_address import StoreAddress
from gpu_runtime.sequence_parallel.ulysses import SharedSequence, shape_of
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from storage.errors import GroupBrokenError

ResultT = TypeVar("ResultT")


class SequenceParallelMember:
    """A model, its text embeddings and this process's place in a group; only the place changes.

    All methods are called from one thread. Those that wait for peers raise `GroupBrokenError` when the
    driver breaks the group off or a peer dies; the member is in no group then and can join another.

    Args:
        name: of the device, unlike any other.
        model: with its weights loaded.
        address: of the driver's store; connected to at once, and not when others wait for this device:
            for each new connection torch looks names up, which can take five seconds.
        connect_s: longest wait for the store.

    Attributes:
        name: as given; a standby gets another one with its place.
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
        """The epoch of the group that this member is in; None while it is in none."""
        return None if self._place is None else self._place.epoch

    @property
    def leads(self) -> bool:
        """Whether this member is its group's leader."""
        return self._place is not None and self._place.leader == self.name

    def join(self, group: WorkerGroup, timeout_s: float) -> None:
        """Leave the group so far and form another.

        Args:
            group: what to form.
            timeout_s: longest wait for a peer, now and later, if the group is not broken off before: a
                backstop.

        Raises:
            GroupBrokenError: if it was broken off before all were there.
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
            epoch: of the group that is meant.
            work: what to do; it uses the model, and may ask `any_true`.

        Raises:
            GroupBrokenError: if the member is in another group, or this one broke.
        """
        if epoch != self.epoch:
            raise GroupBrokenError(f"{self.name} is in the group of epoch {self.epoch}, not of {epoch}")
        try:
            return work()
        except RuntimeError as error:
            if self._group is None or not (self._watch.broken or is_group_failure(error)):
                raise
            reason = str(error).splitlines()[0]
            self.leave()
            raise GroupBrokenError(f"the group of epoch {epoch} broke at {self.name}: {reason}") from None

    def any_true(self, said: bool) -> bool:
        """Whether any member says so; all members must ask at the same moment, and get the same answer."""
        return said if self._group is None else self._group.any_true(said)

    def leave(self) -> None:
        """Leave the group, if any; waits for no other member, as one of them may hang."""
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
            aborted = store.check([aborted_key(group.prefix)])  # before the watch was there to see it
        except RuntimeError as error:  # the watch has seen it, and shut the connection down
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
