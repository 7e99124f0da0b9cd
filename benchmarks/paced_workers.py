"""Workers here that take at least a set time, as if each had a device of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpu_runtime.cluster.local_cluster import LocalActor, LocalCluster
from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.worker.build import device_worker
from gpu_runtime.worker.sample_chunk import SampleChunk
from gpu_runtime.worker.worker import DeviceWorker
from storage.record.records import Market

STEP_S = 0.5
"""Seconds of a denoising step of a batch."""

TRAIN_S = 3.0
"""Seconds of an iteration's training steps."""

TRAIN_SAMPLE_S = 0.3
"""Seconds of training on a sample, where that is paced by samples."""

Result = TypeVar("Result")
WorkerT = TypeVar("WorkerT")


class PacedGenerator(DeviceWorker):
    """A worker whose samples take a set time: it sleeps for what is left, which takes no processor."""

    def begin_samples(
        self, version: WeightsVersion, lease: int, work: Sequence[SampleRequest | SampleState], steps: int
    ) -> SampleChunk:
        """As of a worker."""
        begin = super().begin_samples
        return _paced(lambda: begin(version, lease, work, steps), steps * STEP_S)

    def advance_samples(self, lease: int, steps: int) -> SampleChunk:
        """As of a worker."""
        advance = super().advance_samples
        return _paced(lambda: advance(lease, steps), steps * STEP_S)


class PacedWorker(PacedGenerator):
    """A worker whose training takes a set time, too."""

    def train(self, samples: Sequence[TrainingSample], begins: bool = True) -> TrainingReport:
        """As of a worker; what was added before takes its own time."""
        train = super().train
        return _paced(lambda: train(samples, begins), TRAIN_S)


class SamplePacedWorker(PacedGenerator):
    """A worker that trains on each sample for a set time, whether it comes before the end or with it."""

    def add_to_training(
        self, samples: Sequence[TrainingSample], begins: bool, generates: bool = False
    ) -> None:
        """As of a worker."""
        add = super().add_to_training
        _paced(lambda: add(samples, begins, generates), len(samples) * TRAIN_SAMPLE_S)


def _paced(work: Callable[[], Result], least_s: float) -> Result:
    began = time.monotonic()
    result = work()
    time.sleep(max(0.0, began + least_s - time.monotonic()))
    return result


class PacedCluster(LocalCluster):
    """Local processes whose devices are paced."""

    paced: type[PacedGenerator] = PacedWorker

    def start(
        self,
        name: str,
        build: Callable[..., WorkerT],
        *args: Any,
        gpu: bool,
        market: Market = "reserved",
        gpu_share: float = 0.0,
        reads: Sequence[str] = (),
    ) -> LocalActor[WorkerT]:
        """As of every cluster."""
        paced: Callable[..., Any] = self.paced if build is device_worker else build
        return super().start(name, paced, *args, gpu=gpu, market=market, gpu_share=gpu_share)


class SamplePacedCluster(PacedCluster):
    """Local processes whose devices are paced, and train sample by sample."""

    paced = SamplePacedWorker
