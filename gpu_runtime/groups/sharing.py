"""By how many devices the samples of each phase are shared, and which groups a run has had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError
from contextlib import contextmanager

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import GeneratingFleet, Phase
from gpu_runtime.groups.grouped_fleet import GroupedFleet, Rendezvous
from gpu_runtime.groups.layout import large_first
from gpu_runtime.groups.registry import GroupRegistry
from gpu_runtime.scheduling.requests import WeightsVersion
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, WorkerLostError


class Sharing:
    """Makes groups of the fleet for phases whose samples are shared; others get the fleet as it is.

    Args:
        cluster: where the workers run; it says which of them are on one instance.
        config: the run's configuration.
        degrees_up_to: by how many devices, up to a number, the model's sequences can be shared.
        rendezvous: where groups meet; None where each device works alone.
        collector: takes the groups that end.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: RunConfig,
        degrees_up_to: Callable[[int], tuple[int, ...]],
        rendezvous: Rendezvous | None,
        collector: Collector,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._degrees_up_to = degrees_up_to
        self._degrees: tuple[int, ...] = ()
        self._registry = GroupRegistry()
        self._rendezvous = rendezvous
        self._instances: dict[str, str] = {}
        self._collector = collector
        self.late = 0
        """Answers of workers that came when their group was over, and were dropped."""

    @contextmanager
    def phase(self, fleet: GeneratingFleet, phase: Phase) -> Iterator[GeneratingFleet]:
        """The fleet as a phase's samples are to be shared by it: itself, where each device works alone.

        Args:
            fleet: the devices.
            phase: what they do.

        Raises:
            ConfigurationError: if the model's sequences do not divide by the degree.
        """
        settings = self._config.sequence_parallel
        degree = settings.by_kind[phase.kind]
        if settings.largest > 1 and not self._degrees:
            # Asked in a run's first phase, which is none of drafts: later the trainer may be training.
            self._degrees = self._degrees_up_to(settings.largest)
        if degree == 1:
            yield fleet
            return
        grouped = self._grouped(fleet, phase.version, degree)
        try:
            yield grouped
        finally:
            grouped.close()
            with self._collector.writing() as since:
                since.groups += grouped.records
            self.late += grouped.late

    def _grouped(self, fleet: GeneratingFleet, version: WeightsVersion, degree: int) -> GroupedFleet:
        possible = self._degrees
        if degree not in possible:
            raise ConfigurationError(
                f"sequence parallelism: the model's sequences do not divide by degree {degree}; set "
                f"sequence_parallel.rollout, evaluate and explore to {', '.join(map(str, possible))}"
            )
        weights = large_first(possible, degree)
        lease_s = self._config.runtime.lease_s
        assert self._rendezvous is not None, "some degree is above 1"
        return GroupedFleet(
            fleet, version, weights, self._rendezvous, self._registry, self._instance_of, lease_s
        )

    def _instance_of(self, device: Device) -> str:
        """The instance of a device, by its name; asked once."""
        if device.name not in self._instances:
            try:
                answer = device.actor.instance().result(timeout=self._config.runtime.lease_s)
            except (WorkerLostError, TimeoutError):
                return device.name  # alone; its next call raises what is wrong
            self._instances[device.name] = answer
        return self._instances[device.name]
