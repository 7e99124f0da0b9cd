"""The sharing of each phase's samples by devices, and the groups that a run has had."""

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
    """Sharing by groups of the fleet, for phases that share samples; others get the fleet as it is.

    Args:
        cluster: cluster on which the workers run, which knows their instances.
        config: configuration of the run.
        degrees_up_to: function that returns the possible degrees of the model's sequences up to a number.
        rendezvous: place where groups meet; None if each device works alone.
        collector: collector of ended groups.
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
        """Number of answers that came after their group was over, and were dropped."""

    @contextmanager
    def phase(self, fleet: GeneratingFleet, phase: Phase) -> Iterator[GeneratingFleet]:
        """Provide the fleet in the groups of a phase within a context; the fleet itself for degree 1.

        Args:
            fleet: devices.
            phase: phase that they do.

        Raises:
            ConfigurationError: if the model's sequences do not divide by the degree.
        """
        settings = self._config.sequence_parallel
        degree = settings.by_kind[phase.kind]
        if settings.largest > 1 and not self._degrees:
            # Asked in a run's first phase, which never drafts: later the trainer may be training.
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
        """Return the instance of a device, by its name; the device is asked only once."""
        if device.name not in self._instances:
            try:
                answer = device.actor.instance().result(timeout=self._config.runtime.lease_s)
            except (WorkerLostError, TimeoutError):
                return device.name  # alone; its next call raises what is wrong
            self._instances[device.name] = answer
        return self._instances[device.name]
