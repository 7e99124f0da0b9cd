"""The slots of a fleet, and how long one that cannot be filled is left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from storage.config.runtime import AUTO, RuntimeConfig
from storage.errors import ConfigurationError
from storage.record.records import Market

_MOST_PAUSE = 32
"""Phases at most between two starts of a worker that ends while it loads, again and again."""


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
    one that it does not use, or take one that Ray gives to another process.

    Raises:
        ConfigurationError: standbys are asked for.
    """
    if runtime.standby_workers:
        raise ConfigurationError(
            f"runtime.standby_workers = {runtime.standby_workers}, but the workers have GPUs, and a process "
            "that waits cannot be given a lost worker's GPU; set it to 0, or model.device=cpu"
        )


def worker_counts(runtime: RuntimeConfig, seen: Mapping[Market, int], apart: bool) -> dict[Market, int]:
    """How many workers of each market a run has now.

    Args:
        runtime: the run's settings; a number stands for itself.
        seen: the devices that the cluster has, which `auto` takes.
        apart: whether the cluster's instances say how they are rented. If not, every device may be either,
            and `auto` takes those that a number leaves.
    """
    reserved, spot, trainers = runtime.reserved_workers, runtime.spot_workers, runtime.trainer_workers
    if reserved == AUTO:
        left = seen["reserved"] if apart or spot == AUTO else seen["reserved"] - spot
        reserved = max(trainers, left)  # a run needs these, and waits for them
    if spot == AUTO:
        spot = seen["spot"] if apart else max(0, seen["reserved"] - reserved)
    return {"reserved": reserved, "spot": spot}


def free_slots(counts: Mapping[Market, int], taken: Collection[str]) -> list[tuple[Market, int]]:
    """The slots to fill: market and number within it, the trainer's first.

    A market has as many as workers are missing there, with the lowest numbers that are free: where instances
    come and go, those that stay keep their slots.

    Args:
        counts: workers of each market.
        taken: slots that need none.
    """
    free: list[tuple[Market, int]] = []
    for market, count in counts.items():
        missing = count - sum(slot.startswith(f"{market}-") for slot in taken)
        numbers = (index for index in range(count + len(taken)) if f"{market}-{index}" not in taken)
        for index in islice(numbers, max(0, missing)):
            free.append((market, index))
    return free
