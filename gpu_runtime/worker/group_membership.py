"""A worker's membership in a group that shares sequences; nothing is started before there is one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.sequence_parallel.process_group import StoreAddress
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from storage.errors import GroupBrokenError

if TYPE_CHECKING:  # all families of diffusers: seconds, which the driver and devices that work alone save
    from gpu_runtime.sequence_parallel.member import SequenceParallelMember

ResultT = TypeVar("ResultT")


class GroupMembership:
    """Which group a worker is in, if any.

    Args:
        worker: its name.
        model: whose sequences are shared.
    """

    def __init__(self, worker: str, model: DiffusionModel) -> None:
        self._worker = worker
        self._model = model
        self._member: SequenceParallelMember | None = None

    def degrees(self, up_to: int) -> tuple[int, ...]:
        """By how many devices, up to a number, the model's sequences can be shared."""
        from gpu_runtime.sequence_parallel.ulysses import shape_of

        return shape_of(self._model.transformer, *self._model.sequence_lengths()).degrees(up_to)

    def take(
        self, address: StoreAddress, group: WorkerGroup, timeout_s: float
    ) -> SequenceParallelMember | None:
        """Leave the group so far, and form another one.

        Args:
            address: of the driver's store, where members meet.
            group: to form.
            timeout_s: longest wait for the other members.

        Returns:
            The worker as a member; None where the group is this worker alone.

        Raises:
            GroupBrokenError: if it was broken off before all were there.
        """
        if self._member is None:
            if len(group.members) == 1:
                return None
            from gpu_runtime.sequence_parallel.member import SequenceParallelMember

            self._member = SequenceParallelMember(self._worker, self._model, address, timeout_s)
            # What is there now stays: no collection need look at it again, which makes leaving slow.
            gc.collect()
            gc.freeze()
        self._member.join(group)
        return self._member if len(group.members) > 1 else None

    def leave(self) -> None:
        """Work alone from now on."""
        if self._member is not None:
            self._member.leave()

    def together(self, epoch: int, work: Callable[[], ResultT]) -> ResultT:
        """Do something that every member of the group does at the same time.

        Raises:
            GroupBrokenError: if this worker is not in the group of that epoch any more, or it broke.
        """
        if self._member is None:
            raise GroupBrokenError(f"{self._worker} is in no group, not in that of epoch {epoch}")
        return self._member.together(epoch, work)
