"""A device of the fleet as the driver sees it, and the weights that it is given."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.learning.policy import WeightState
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.spot.notice import Notice
from gpu_runtime.worker_protocol import Worker
from storage.errors import ConfigurationError, RuntimeFailure
from storage.records import Market
from storage.runtime_config import RuntimeConfig

_MOST_PAUSE = 32
"""Phases at most between two starts of a worker that ends while it loads, again and again."""


@dataclass
class Device:
    """A worker of the fleet.

    Attributes:
        actor: its process.
        market: how it is rented.
        holds: version of the weights it holds; None before it has loaded any.
        coming: weights that it is loading, and the call that does.
        notice: the preemption notice that it is under.
        step_s: seconds that a denoising step of a batch last took it; None before it has done any.
        asked_at_s: when its process was asked for (monotonic seconds, as below).
        loaded_at_s: when it was seen to have loaded, or to be gone while it did.
        degree: how many workers it stands for; more than one share each sequence.
        retiring: it gets no further chunk: its lease ends with those under way.
        standby: name of the standby that has taken its place; empty where a process was started for it.
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

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.actor.name

    @property
    def slot(self) -> str:
        """The place it fills; its replacement fills the same."""
        return self.name.split(".")[0]

    def take(self, weights: Weights, digest: str) -> None:
        """It has loaded weights, and read them back.

        Args:
            weights: what it was to load.
            digest: of what it holds.

        Raises:
            RuntimeFailure: if that is something else.
        """
        self.coming = None
        if digest != weights.digest:
            raise RuntimeFailure(
                f"worker {self.name} holds weights with checksum {digest} after loading {weights.version}, "
                f"whose checksum is {weights.digest}; resume the run"
            )
        self.holds = weights.version


@dataclass(frozen=True)
class Weights:
    """Published weights: their version, their digest and what `Cluster.share` returned for them."""

    version: WeightsVersion
    digest: str
    state: WeightState


@dataclass(frozen=True)
class FailedStart:
    """A worker that died while it loaded.

    Attributes:
        in_a_row: how many workers of its slot did so in a row, this one included.
        pause: phases until the slot gets its next worker.
    """

    worker: str
    reason: str
    in_a_row: int
    pause: int

    @property
    def in_words(self) -> str:
        """What happened and what is done about it, for a person."""
        slot = self.worker.split(".")[0]
        often = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        when = "with the next phase" if self.pause == 1 else f"in {self.pause} phases"
        return f"{slot} did not start{often}: {self.reason}; it is tried again {when}"


def pause(failures: int) -> int:
    """Phases until the next start of a worker, after so many in a row that died while they loaded.

    The first two may be chance, such as an instance that was taken; then the pause doubles.
    """
    return min(2 ** max(0, failures - 2), _MOST_PAUSE)


def refuse_standbys_with_gpus(runtime: RuntimeConfig) -> None:
    """Refuse standbys where the workers have GPUs.

    Ray gives a share of a GPU to a process when it starts it, and to no other later: a standby would hold
    one that it does not use, or take one that Ray gives to somebody else.

    Raises:
        ConfigurationError: standbys are asked for.
    """
    if runtime.standby_workers:
        raise ConfigurationError(
            f"runtime.standby_workers = {runtime.standby_workers}, but the workers have GPUs, and a process "
            "that waits cannot be given a lost worker's GPU; set it to 0, or model.device=cpu"
        )


def slots(runtime: RuntimeConfig) -> list[tuple[Market, int]]:
    """The places to fill: market and number within it, the trainer's first."""
    counts: tuple[tuple[Market, int], ...] = (
        ("reserved", runtime.reserved_workers),
        ("spot", runtime.spot_workers),
    )
    return [(market, index) for market, count in counts for index in range(count)]
