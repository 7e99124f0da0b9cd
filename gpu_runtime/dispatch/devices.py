"""A device of the fleet as seen by the driver, and the weights published to it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.learning.weights import WeightState
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import Worker
from storage.errors import RuntimeFailure
from storage.record.records import Market


@dataclass
class Device:
    """A worker of the fleet.

    Attributes:
        holds: version of the weights it holds; None before it has loaded any.
        coming: weights that it is loading, and the call that loads them.
        step_s: seconds that its last denoising step of a batch took; None before the first.
        asked_at_s: time at which its process was requested (monotonic seconds, as below).
        loaded_at_s: time at which it had loaded, or was found dead while loading.
        degree: number of workers that it represents; several share each sequence.
        retiring: True if it gets no further chunks and its lease ends with those in flight.
        standby: name of the standby that took its slot; empty if a process was started for it.
        kind: its hardware, `cpu` or the GPU's name; empty before it has loaded.
    """

    actor: RemoteActor[Worker]
    market: Market
    holds: WeightsVersion | None = None
    coming: tuple[Weights, Future[str]] | None = None
    notice: Notice | None = None
    step_s: float | None = None
    asked_at_s: float = 0.0
    loaded_at_s: float | None = None
    degree: int = 1
    retiring: bool = False
    standby: str = ""
    kind: str = ""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.actor.name

    @property
    def slot(self) -> str:
        """Slot that it fills, and its replacement after it."""
        return self.name.split(".")[0]

    @property
    def stays(self) -> bool:
        """True if it is still due to get work."""
        return self.notice is None and not self.retiring

    def take(self, weights: Weights, digest: str) -> None:
        """Record that it has loaded weights, after checking what it holds.

        Raises:
            RuntimeFailure: if these are other weights.
        """
        self.coming = None
        if digest != weights.digest:
            raise RuntimeFailure(
                f"worker {self.name} holds weights with checksum {digest} after loading {weights.version}, "
                f"whose checksum is {weights.digest}"
            )
        self.holds = weights.version


@dataclass(frozen=True)
class Weights:
    """Published weights: their version, their digest and what `Cluster.share` returned for them."""

    version: WeightsVersion
    digest: str
    state: WeightState
