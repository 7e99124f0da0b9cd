"""Sharing whose degree may be `auto`: the measured times of a run, and fleets that choose by them."""

from __future__ import annotations

from collections.abc import Callable

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.phase import GeneratingFleet
from gpu_runtime.groups.grouped_fleet import GroupedFleet, Rendezvous
from gpu_runtime.groups.measured_fleet import MeasuredFleet
from gpu_runtime.groups.sharing import Sharing
from gpu_runtime.groups.step_times import RequestClass, StepTimeTable
from gpu_runtime.scheduling.requests import WeightsVersion
from storage.config.run_config import RunConfig
from storage.config.sequence_parallel import AUTO
from storage.record.records import StepTimeRecord


class MeasuredSharing(Sharing):
    """Sharing by groups of the fleet; for the degree `auto`, measured times choose the groups.

    All requests of a run are of one class: rollouts and evaluations have the same resolution and batches.

    Args:
        cluster: cluster on which the workers run.
        config: configuration of the run.
        degrees_up_to: function that returns the possible degrees of the model's sequences up to a number.
        rendezvous: place where groups meet; None if each device works alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: RunConfig,
        degrees_up_to: Callable[[int], tuple[int, ...]],
        rendezvous: Rendezvous | None,
        collector: Collector,
    ) -> None:
        super().__init__(cluster, config, degrees_up_to, rendezvous, collector)
        self._class = RequestClass(config.model.height, config.model.width, config.sampling.batch_size)
        self._step_times = StepTimeTable()
        collector.book_at_close(self._book_step_times)

    def _grouped(self, fleet: GeneratingFleet, version: WeightsVersion, degree: int) -> GroupedFleet:
        if degree != AUTO:
            return super()._grouped(fleet, version, degree)
        lease_s = self._config.runtime.lease_s
        assert self._rendezvous is not None, "some degree is above 1"
        return MeasuredFleet(
            fleet,
            version,
            self._step_times,
            self._degrees,
            self._rendezvous,
            self._registry,
            self._instance_of,
            lease_s,
        )

    def _book_step_times(self) -> None:
        """Record the seconds of a denoising step, for degrees that were timed since the last call."""
        changed = self._step_times.take_changed()
        with self._collector.writing() as since:
            since.step_times += [
                StepTimeRecord(str(self._class), degree, self._step_times.known[degree], chunks)
                for degree, chunks in changed.items()
            ]
