"""A worker's membership in the training group."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_runtime.sequence_parallel.store_address import StoreAddress


@dataclass(frozen=True)
class TrainingMembership:
    """One of several devices that divide the trained model and its training steps.

    Attributes:
        rank: number of the device; the first one, 0, returns what all of them have.
        size: number of devices, at least 2.
        address: address of the driver's store, at which they meet.
        meet_s: longest wait for the others while the group is formed.
        exchange_s: longest wait for another one in an exchange; a backstop, as this process is ended before.
    """

    rank: int
    size: int
    address: StoreAddress
    meet_s: float
    exchange_s: float

    @property
    def leads(self) -> bool:
        """True if this device is the leader, which answers for all."""
        return self.rank == 0
