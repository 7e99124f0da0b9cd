"""The cluster's autoscaler as a provider: it adds or removes instances to match the devices requested.

Ray places workers, so an offer is one of the cluster's devices rather than an instance. It stays until the
run releases it: the number of devices does not show which one is gone, and the cluster itself reports the
worker of a lost instance. When a worker ends, its instance is idle, and the autoscaler takes idle instances
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.fleet.capacity.protocol import CapacityProvider, Offer
from storage.errors import CapacityError


class AutoscalerCapacity(CapacityProvider):
    """A provider that uses the autoscaler of the run's cluster."""

    names_instances = False

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._wanted = 0
        self._asked: int | None = None
        self._held: list[Offer] = []
        self._numbers = count()

    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """See `CapacityProvider`; requests from the autoscaler whenever the number changes.

        It keeps retrying what it cannot do; `ray status` shows why.
        """
        self._wanted = devices
        if devices == self._asked:
            return
        try:
            self._cluster.request_spot_devices(devices)
        except CapacityError as error:  # requested again with the next iteration
            self._troubles.append(str(error))
        else:
            self._asked = devices

    def offered(self) -> Sequence[Offer]:
        """See `CapacityProvider`."""
        there = min(self._wanted, self._cluster.devices()["spot"])
        while len(self._held) < there:
            self._held.append(Offer(f"device-{next(self._numbers)}"))
        return list(self._held)

    def release(self, instance: str) -> None:
        """See `CapacityProvider`; the instance is idle since its worker ended."""
        self._held = [offer for offer in self._held if offer.instance != instance]

    def close(self) -> None:
        """Ask the autoscaler for no more devices."""
        if not self._taken_over():
            self.wanted(0, None)
