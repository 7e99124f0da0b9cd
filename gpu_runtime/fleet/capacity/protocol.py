"""What a provider of spot instances is asked, and what it offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Offer:
    """An instance that is there for the run.

    Attributes:
        instance: its name, unlike that of any other that is offered.
        devices: that it has.
        usd_per_hour: price of a device; None for `price.spot_usd_per_hour`.
        called_back: why it has to be given back soon, in words; empty where it may stay.
    """

    instance: str
    devices: int = 1
    usd_per_hour: float | None = None
    called_back: str = ""


class CapacityProvider(Protocol):
    """Rents spot instances. No call waits: what takes long goes on in the background."""

    def wanted(self, devices: int, deadline_s: float | None) -> None:
        """How many devices the run wants from now on, those that it has included.

        Fewer than it has takes none away: the run says with `release` which ones go.

        Args:
            devices: in all.
            deadline_s: seconds after which more are of no use any more; None where that is not known.
        """
        ...

    def offered(self) -> Sequence[Offer]:
        """The instances that the run may use now, in the order in which they came.

        One that is no longer among them is gone.
        """
        ...

    def release(self, instance: str) -> None:
        """The run uses an instance no more: it was given back, or its worker died.

        It is not offered again as the same one, unless the provider starts it anew.
        """
        ...

    def take_troubles(self) -> list[str]:
        """What went wrong since the last call, in words."""
        ...

    def close(self) -> None:
        """The run ends: give all back, and wait until that is done."""
        ...
