"""Offers of spot instances, and the base class of the providers that make them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """An instance that the run may use.

    Attributes:
        instance: name, unique among the offers.
        usd_per_hour: price of a device; None for `price.spot_usd_per_hour`.
        called_back: reason, in words, why it has to be given back soon; empty if it may stay.
    """

    instance: str
    devices: int = 1
    usd_per_hour: float | None = None
    called_back: str = ""


class CapacityProvider(ABC):
    """A source of spot instances. No call blocks: slow work runs in the background.

    Subclasses add to `_troubles`, under `_lock` where several threads do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._troubles: list[str] = []

    @abstractmethod
    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """Set how many devices the run wants from now on, including those that it has.

        A lower number takes none away: the run chooses with `release` which ones go.

        Args:
            deadline_s: seconds after which more devices are of no use; None if that is not known.
        """

    @abstractmethod
    def offered(self) -> Sequence[Offer]:
        """Return the instances that the run may use now, in the order in which they came.

        An instance that is no longer among them is gone.
        """

    @abstractmethod
    def release(self, instance: str) -> None:
        """Release an instance that the run no longer uses: it was given back, or its worker died.

        It is not offered again under this name, unless the provider starts it again.
        """

    @abstractmethod
    def close(self) -> None:
        """Give all instances back at the end of the run, and wait until that is done."""

    def take_troubles(self) -> list[str]:
        """Return what went wrong since the last call, in words."""
        with self._lock:
            taken, self._troubles = self._troubles, []
        return taken
