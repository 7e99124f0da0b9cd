"""The slots of a fleet, and how long one that cannot be filled is left alone."""

from __future__ import annotations

from dataclasses import dataclass

from storage.config.runtime import RuntimeConfig
from storage.database.records import Market
from storage.errors import ConfigurationError

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


def slots(runtime: RuntimeConfig) -> list[tuple[Market, int]]:
    """The slots to fill: market and number within it, the trainer's first."""
    counts: tuple[tuple[Market, int], ...] = (
        ("reserved", runtime.reserved_workers),
        ("spot", runtime.spot_workers),
    )
    return [(market, index) for market, count in counts for index in range(count)]
