"""A provider of spot instances that offers what the test puts there."""

from __future__ import annotations

from gpu_runtime.fleet.capacity.protocol import CapacityProvider, Offer


class FakeCapacity(CapacityProvider):
    """A provider without instances.

    Attributes:
        offers: what it offers.
        asked: the numbers of devices that were wanted, in order.
        released: instances that were given back, in order.
        closed: whether the run has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offers: list[Offer] = []
        self.asked: list[int] = []
        self.released: list[str] = []
        self.closed = False

    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """See `CapacityProvider`."""
        self.asked.append(devices)

    def offered(self) -> list[Offer]:
        """See `CapacityProvider`."""
        return list(self.offers)

    def release(self, instance: str) -> None:
        """See `CapacityProvider`."""
        self.released.append(instance)
        self.offers = [offer for offer in self.offers if offer.instance != instance]

    def close(self) -> None:
        """See `CapacityProvider`."""
        for offer in list(self.offers):
            self.release(offer.instance)
        self.closed = True
