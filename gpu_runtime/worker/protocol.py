"""The calls that the driver may make to the processes that it starts; without importing torch or Ray.

Calls name a method through these protocols (`actor.call(Worker.train, samples)`), so that the type checker
follows them from the caller to the method.
"""
# ruff: noqa: D102 - the implementing classes describe the methods

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from gpu_runtime.diffusion.samples import SampleState
    from gpu_runtime.learning.objectives.protocol import TrainingSample
    from gpu_runtime.learning.report import TrainingReport
    from gpu_runtime.learning.weights import WeightState
    from gpu_runtime.rewards.protocol import Score
    from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
    from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
    from gpu_runtime.spot.notices.notice import Notice
    from gpu_runtime.worker.history_log import HistoryPlace
    from gpu_runtime.worker.sample_chunk import SampleChunk
    from storage.prompts.files import PromptRecord


@dataclass(frozen=True)
class WorkerReady:
    """A worker's answer once it has loaded.

    Attributes:
        age_s: age of its process. A duration, as its clock may differ from the driver's.
        host: name of its machine.
        history: file that it writes its history to, on that machine; None without one.
        device: device that it computes on: `cpu`, or the GPU's name.
    """

    age_s: float
    host: str = ""
    history: str | None = None
    device: str = ""


@dataclass(frozen=True)
class HostUsage:
    """The use that a process has made of its machine.

    Attributes:
        cpu_s: processor time since it began.
        memory_bytes: resident memory now.
    """

    cpu_s: float
    memory_bytes: int


class Worker(Protocol):
    """A device's worker; `gpu_runtime/worker/worker.py` describes each call."""

    def ready(self) -> WorkerReady: ...

    def host_usage(self) -> HostUsage: ...

    def take_slot(self, name: str, watches: bool, history: HistoryPlace | None) -> WorkerReady: ...

    def notice(self) -> Notice | None: ...

    def load_weights(self, version: WeightsVersion, state: WeightState) -> str: ...

    def use_training_weights(self, version: WeightsVersion) -> str: ...

    def begin_samples(
        self, version: WeightsVersion, lease: int, work: Sequence[SampleRequest | SampleState], steps: int
    ) -> SampleChunk: ...

    def advance_samples(self, lease: int, steps: int) -> SampleChunk: ...

    def degrees(self, up_to: int) -> tuple[int, ...]: ...

    def join_group(self, group: WorkerGroup, timeout_s: float) -> None: ...

    def leave_group(self) -> None: ...

    def in_group(self, epoch: int, method: str, *args: Any) -> Any: ...

    def add_to_training(
        self, samples: Sequence[TrainingSample], begins: bool, generates: bool = False
    ) -> None: ...

    def train(self, samples: Sequence[TrainingSample], begins: bool = True) -> TrainingReport: ...

    def set_kl_weight(self, weight: float) -> None: ...

    def weights(self) -> WeightState: ...

    def average_weights(self) -> WeightState: ...

    def blobs(self) -> dict[str, bytes]: ...

    def restore(self, blobs: Mapping[str, bytes]) -> None: ...


class ImageScorer(Protocol):
    """A scorer's process; `gpu_runtime/worker/scoring_worker.py` describes each call."""

    def ready(self) -> str: ...

    def score(
        self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord], held_out: bool = False
    ) -> list[Score]: ...
