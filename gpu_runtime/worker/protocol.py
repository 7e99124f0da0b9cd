"""The driver's calls to the processes that it starts; without importing torch or Ray.

Calls name a method through the protocol (`actor.call(Worker.train, samples)`), so the type checker follows
them from the caller to the method.
"""
# ruff: noqa: D102 - the worker's class describes the methods

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from gpu_runtime.diffusion.samples import GeneratedImage, SampleState
    from gpu_runtime.learning.gradient_shards import ShardSum, Span
    from gpu_runtime.learning.objectives.protocol import TrainingSample
    from gpu_runtime.learning.report import TrainingReport
    from gpu_runtime.learning.weights import WeightState
    from gpu_runtime.scheduling.group_layout import WorkerGroup
    from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
    from gpu_runtime.sequence_parallel.control_store import StoreAddress
    from gpu_runtime.spot.notices.notice import Notice
    from gpu_runtime.worker.history import HistoryPlace


@dataclass(frozen=True)
class WorkerReady:
    """A worker's answer once it has loaded.

    Attributes:
        age_s: age of its process; a duration, because its clock may differ from the driver's.
        history: file that it writes its history to, on that machine; None without one.
        device: device that it computes on: `cpu`, or the GPU's name.
        notices_fail: why the last poll of its machine's preemption notices failed; empty if it did not.
    """

    age_s: float
    host: str = ""
    history: str | None = None
    device: str = ""
    notices_fail: str = ""


@dataclass(frozen=True)
class HostUsage:
    """A process's use of its machine.

    Attributes:
        cpu_s: CPU time since it began.
        memory_bytes: resident memory now.
    """

    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True)
class SampleChunk:
    """A worker's answer to a call for denoising steps: states to commit, or finished samples.

    Attributes:
        states: states that the samples have reached; empty if they are finished, or no step was done.
        samples: finished samples, all at once; drafts not used for training have only images, which
            scorers need.
        notice: the machine's preemption notice, if any. The device has then given up the lease.
        step_s: mean seconds per denoising step of the call; None if it did none.
    """

    states: tuple[SampleState, ...] = ()
    samples: tuple[GeneratedImage, ...] = ()
    notice: Notice | None = None
    step_s: float | None = None


@dataclass(frozen=True)
class TrainingMembership:
    """A worker's place among devices that divide the trained model and its training steps.

    Attributes:
        rank: number of the device; the first, 0, returns their common results.
        size: number of devices, at least 2.
        address: address of the driver's store, at which they meet.
        meet_s: longest wait for the others while the group forms.
        exchange_s: longest wait for another device in an exchange; a backstop, because the driver ends this
            process sooner.
    """

    rank: int
    size: int
    address: StoreAddress
    meet_s: float
    exchange_s: float


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

    def begin_training(self, shards: Sequence[int]) -> None: ...

    def add_to_training(self, samples: Sequence[TrainingSample], generates: bool = False) -> None: ...

    def train(self, samples: Sequence[TrainingSample]) -> TrainingReport: ...

    def shard_sums(self, update: int, shards: Sequence[int]) -> dict[Span, ShardSum]: ...

    def take_training_step(self, update: int, total: ShardSum) -> None: ...

    def end_training(self) -> TrainingReport: ...

    def set_kl_weight(self, weight: float) -> None: ...

    def weights(self) -> WeightState: ...

    def encode_pictures(self, pictures: Sequence[str]) -> np.ndarray: ...

    def average_weights(self) -> WeightState | None: ...

    def blobs(self) -> dict[str, bytes]: ...

    def restore(self, blobs: Mapping[str, bytes]) -> None: ...
