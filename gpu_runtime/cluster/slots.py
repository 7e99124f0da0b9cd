"""The slots for workers on a cluster's devices, and the pause before retrying an unfillable one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from storage.config.run_config import RunConfig
from storage.config.runtime import AUTO, RuntimeConfig
from storage.errors import ConfigurationError
from storage.record.records import Market

_MOST_PAUSE = 32
"""Largest number of phases between two starts of a worker that keeps ending while it loads."""


@dataclass(frozen=True)
class FailedStart:
    """A worker that died while it loaded.

    Attributes:
        in_a_row: workers of its slot that did so in a row, including this one.
        pause: phases until the slot gets its next worker.
    """

    worker: str
    reason: str
    in_a_row: int
    pause: int

    @property
    def in_words(self) -> str:
        """Message to users: the failure and when the slot is retried."""
        slot = self.worker.split(".")[0]
        often = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        when = "with the next phase" if self.pause == 1 else f"in {self.pause} phases"
        return f"{slot} did not start{often}: {self.reason}; it will be retried {when}"


def pause(failures: int) -> int:
    """Return the phases until the next start of a worker, after this many deaths in a row while loading.

    The first two may be chance, such as a lost instance; then the pause doubles.
    """
    return min(2 ** max(0, failures - 2), _MOST_PAUSE)


def refuse_standbys_with_gpus(runtime: RuntimeConfig) -> None:
    """Refuse standbys where the workers have GPUs.

    Ray assigns a share of a GPU to a process at its start and never moves it: a standby would hold a share
    without using it, or take one that Ray gives to another process.

    Raises:
        ConfigurationError: standbys are requested.
    """
    if runtime.standby_workers:
        raise ConfigurationError(
            f"runtime.standby_workers = {runtime.standby_workers}, but the workers have GPUs, and a waiting "
            "process cannot take over a lost worker's GPU; set it to 0, or model.device=cpu"
        )


def refuse_shared_gpus(config: RunConfig, workers: int, gpus: float) -> None:
    """Refuse devices that divide the weights, or share samples, if workers share GPUs.

    Args:
        workers: workers of the run.
        gpus: GPUs for them and for the scorers.

    Raises:
        ConfigurationError: if there are several workers, and fewer GPUs; NCCL takes one process per GPU.
    """
    runtime, degrees = config.runtime, config.sequence_parallel.by_kind.values()
    if config.divides_weights:
        use, without = f"runtime.trainer_workers is {runtime.trainer_workers}", "runtime.trainer_workers=1"
    elif config.sequence_parallel.largest > 1:
        use = "samples are shared" if max(degrees) > 1 else "samples may be shared"
        without = "all degrees of sequence_parallel to 1"
    else:
        return
    scorers = runtime.scorer_workers * runtime.scorer_gpu
    left = max(0, math.floor(gpus - scorers))
    if workers <= max(1, left):
        return
    counted = "1 GPU" if left == 1 else f"{left} GPUs"
    beside = " left beside the scorers" if scorers else ""
    fewer = ["runtime.scorer_gpu"] if scorers else []
    if runtime.least_spot:
        fewer.append("runtime.spot_workers")
    elif runtime.reserved_workers != AUTO and runtime.reserved_workers > runtime.trainer_workers:
        fewer.append("runtime.reserved_workers")
    advice = f"lower {' or '.join(fewer)}, or set {without}" if fewer else f"set {without}"
    raise ConfigurationError(
        f"{use}, but {workers} workers would share {counted}{beside}; each device that works with others "
        f"needs its own GPU: {advice}"
    )


def worker_counts(runtime: RuntimeConfig, seen: Mapping[Market, int], apart: bool) -> dict[Market, int]:
    """Return the number of workers of each market that a run should have now.

    Args:
        runtime: runtime settings; a number stands for itself.
        seen: devices of the cluster, which `auto` takes.
        apart: True if the cluster's instances state their market. Otherwise a device may be either, and
            `auto` takes those that a number leaves.
    """
    reserved, spot, trainers = runtime.reserved_workers, runtime.spot_workers, runtime.trainer_workers
    if reserved == AUTO:
        left = seen["reserved"] if apart or spot == AUTO else seen["reserved"] - spot
        reserved = max(trainers, left)  # a run needs these, and waits for them
    if spot == AUTO:
        spot = seen["spot"] if apart else max(0, seen["reserved"] - reserved)
    return {"reserved": reserved, "spot": spot}


def free_slots(counts: Mapping[Market, int], taken: Collection[str]) -> list[tuple[Market, int]]:
    """Return the slots to fill: market and number within it, the trainer's first.

    Each market gets as many as it lacks workers, with the lowest free numbers, so staying workers keep
    their slots as instances come and go.

    Args:
        taken: slots that need no worker.
    """
    free: list[tuple[Market, int]] = []
    for market, count in counts.items():
        missing = count - sum(slot.startswith(f"{market}-") for slot in taken)
        numbers = (index for index in range(count + len(taken)) if f"{market}-{index}" not in taken)
        for index in islice(numbers, max(0, missing)):
            free.append((market, index))
    return free
