"""Offers of spot instances, and the base class of the providers that make them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from storage.config.section import Section

MOST_OFFERED = 1024
"""Most instances in a program's answer, and most devices of one."""


@dataclass(frozen=True)
class Offer:
    """An instance that the run may use.

    Attributes:
        instance: name, unique among the offers.
        usd_per_hour: price of a device; None for `price.spot_usd_per_hour`.
        called_back: reason, as text, why it must be given back soon; empty if it may stay.
    """

    instance: str
    devices: int = 1
    usd_per_hour: float | None = None
    called_back: str = ""


class OfferedInstance(Section):
    """An instance in the answer of a program of the user."""

    instance: str = Field(min_length=1, max_length=200)
    devices: int = Field(default=1, ge=1, le=MOST_OFFERED)
    usd_per_hour: float | None = Field(default=None, ge=0, le=1e6)


class CapacityProvider(ABC):
    """A source of spot instances. No call blocks: slow work runs in the background.

    Subclasses add to `_troubles`, under `_lock` if several threads do.

    Attributes:
        names_instances: True if an offer is a rented instance, paid for from then on; False if it is only
            a number of devices that the cluster may have.
        unproven: names of instances kept from an earlier life of the run on which no worker has joined yet:
            they may be gone.
    """

    names_instances = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._troubles: list[str] = []
        self._taken_over: Callable[[], bool] = lambda: False
        self.unproven: set[str] = set()

    def keep_in(self, file: Path, taken_over: Callable[[], bool]) -> None:
        """Keep the names of held instances in a file of the run, and go on with those in it.

        It is called once, before all else. A provider whose instances another program remembers needs none.

        Args:
            file: the run's file for them.
            taken_over: returns True once another process drives the run, which then uses its instances.
        """
        self._taken_over = taken_over

    @abstractmethod
    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """Set how many devices the run wants from now on, including those it has.

        A lower number takes none away: the run chooses which to `release`.

        Args:
            deadline_s: seconds after which more devices are useless; None if unknown.
        """

    @abstractmethod
    def offered(self) -> Sequence[Offer]:
        """Return the instances that the run may use now, in order of arrival.

        An instance missing from them is gone.
        """

    @abstractmethod
    def release(self, instance: str) -> None:
        """Release an instance that the run no longer uses, because it gave it back or its worker died.

        It is not offered again under this name unless the provider restarts it.
        """

    @abstractmethod
    def close(self) -> None:
        """Give all instances back at the end of the run, and wait for completion.

        If the run was taken over, its new driver's instances stay.
        """

    def take_troubles(self) -> list[str]:
        """Return problems since the last call, as text."""
        with self._lock:
            taken, self._troubles = self._troubles, []
        return taken
