"""By how many devices the samples of each phase are shared, and which groups a run has had."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import TimeoutError
from contextlib import contextmanager

from gpu_runtime.actors.cluster import Cluster
from gpu_runtime.devices import Device
from gpu_runtime.generation import GeneratingFleet
from gpu_runtime.grouped_fleet import GroupedFleet
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.sequence_parallel.epochs import EpochBook
from storage.config import RunConfig
from storage.errors import ConfigurationError, WorkerLostError
from storage.records import GroupRecord


class Sharing:
    """Makes groups of the fleet for phases whose samples are shared; others get the fleet as it is.

    Args:
        cluster: where the workers run; it says which of them are on one instance.
        config: the run's configuration.
    """

    def __init__(self, cluster: Cluster, config: RunConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._book = EpochBook()
        self._store: ControlStore | None = None
        self._instances: dict[str, str] = {}
        self._records: list[GroupRecord] = []
        self.late = 0
        """Answers of workers that came when their group was over, and were dropped."""

    def degree(self, kind: RequestKind) -> int:
        """Workers that share a sample of a kind, where there are as many."""
        settings = self._config.sequence_parallel
        return settings.evaluate if kind is RequestKind.EVALUATE else settings.rollout

    @contextmanager
    def phase(
        self, fleet: GeneratingFleet, key: str, degree: int, degrees: tuple[int, ...]
    ) -> Iterator[GeneratingFleet]:
        """The fleet as a phase's samples are to be shared by it.

        Args:
            fleet: the devices.
            key: name of the weights that the phase generates with.
            degree: workers that share a sample.
            degrees: those up to it that the model's sequences divide by.

        Raises:
            ConfigurationError: if the degree is none of them.
        """
        if degree not in degrees:
            raise ConfigurationError(
                f"sequence parallelism: the model's sequences do not divide by degree {degree}; set "
                f"sequence_parallel.rollout and evaluate to {', '.join(map(str, degrees))}"
            )
        if self._store is None:
            self._store = ControlStore(self._cluster.host)
        # Large groups first: each weighs more than any smaller ones of as many devices.
        weights = {size: 1 / size**2 for size in degrees}
        lease_s = self._config.runtime.lease_s
        grouped = GroupedFleet(fleet, key, weights, self._store, self._book, self._instance_of, lease_s)
        try:
            yield grouped
        finally:
            grouped.close()
            self._records += grouped.records
            self.late += grouped.late

    def take_groups(self) -> list[GroupRecord]:
        """The groups that ended since the last call."""
        taken, self._records = self._records, []
        return taken

    def _instance_of(self, device: Device) -> str:
        """The Ray node of a device: all devices of a local cluster are on one."""
        if self._cluster.is_local:
            return ""
        if device.name not in self._instances:
            try:
                answer = device.actor.call("instance").result(timeout=self._config.runtime.lease_s)
            except (WorkerLostError, TimeoutError):
                return device.name  # with nobody; its next call tells what is wrong
            self._instances[device.name] = answer
        return self._instances[device.name]
