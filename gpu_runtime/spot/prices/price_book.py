"""The prices of devices: a price book that refuses invalid prices, and never treats "none" as free."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from storage.errors import ConfigurationError, PriceNotFoundError

PriceMarket = Literal["on_demand", "spot"]


@dataclass(frozen=True)
class Price:
    """An offer of one device.

    Attributes:
        device: kind of device, such as `H100`.
        market: `on_demand` or `spot`.
        zone: provider and zone, such as `gcp/us-east4`.
        usd_per_hour: dollars per hour of one device; None if the offer is unavailable.
        source: origin of the figure, for display only.
    """

    device: str
    market: PriceMarket
    zone: str
    usd_per_hour: float | None
    source: str = ""

    def __str__(self) -> str:
        return f"{self.device} {self.market} in {self.zone}"


class PriceBook:
    """Prices by device, market and zone.

    Raises:
        ConfigurationError: a duplicate offer, an empty name, an unknown market, a price that is not a number
            above 0, or a spot price above the zone's on-demand price.
    """

    def __init__(self, prices: Iterable[Price]) -> None:
        self._prices: dict[tuple[str, str, str], Price] = {}
        for price in prices:
            _check(price)
            key = (price.device, price.market, price.zone)
            if key in self._prices:
                raise ConfigurationError(f"{price} has two prices; keep one")
            self._prices[key] = price
        for price in self._prices.values():
            self._check_discount(price)

    @property
    def prices(self) -> tuple[Price, ...]:
        """All offers, including unavailable ones, in the order in which they were given."""
        return tuple(self._prices.values())

    def usd_per_hour(self, device: str, market: PriceMarket, zone: str) -> float:
        """Return the dollars per hour of one device.

        Args:
            device: kind of GPU.
            market: `on_demand` or `spot`.
            zone: zone of the provider.

        Raises:
            PriceNotFoundError: the offer does not exist or is unavailable; the message names others.
        """
        price = self._prices.get((device, market, zone))
        if price is None:
            raise PriceNotFoundError(
                f"no price of {device} {market} in {zone}; {self._there_are(device, market)}"
            )
        if price.usd_per_hour is None:
            raise PriceNotFoundError(f"{price} is unavailable; {self._there_are(device, market)}")
        return price.usd_per_hour

    def cheapest(self, device: str, market: PriceMarket) -> Price:
        """Return the cheapest available offer; among equals, the first zone by name.

        Raises:
            PriceNotFoundError: no offer is available.
        """
        offers = [(price.usd_per_hour, price.zone, price) for price in self._available(device, market)]
        if not offers:
            raise PriceNotFoundError(f"no {device} {market} is available; {self._there_are(device, market)}")
        return min(offers)[2]

    def discount(self, device: str, zone: str) -> float:
        """Return the share that the spot market saves in a zone, 0 to 1.

        Raises:
            PriceNotFoundError: one of the two prices is missing or unavailable.
        """
        return 1 - self.usd_per_hour(device, "spot", zone) / self.usd_per_hour(device, "on_demand", zone)

    def _available(self, device: str, market: str) -> list[Price]:
        return [
            price
            for price in self._prices.values()
            if price.device == device and price.market == market and price.usd_per_hour is not None
        ]

    def _there_are(self, device: str, market: str) -> str:
        """Return a message that names the nearest existing offers."""
        zones = sorted(price.zone for price in self._available(device, market))
        if zones:
            return f"{device} {market} has a price in {', '.join(zones)}"
        offers = sorted(
            {f"{p.device} {p.market}" for p in self._prices.values() if p.usd_per_hour is not None}
        )
        return f"there are prices of {', '.join(offers)}" if offers else "the price book is empty"

    def _check_discount(self, spot: Price) -> None:
        on_demand = self._prices.get((spot.device, "on_demand", spot.zone))
        if spot.market != "spot" or spot.usd_per_hour is None:
            return
        if on_demand is None or on_demand.usd_per_hour is None or spot.usd_per_hour <= on_demand.usd_per_hour:
            return
        raise ConfigurationError(
            f"{spot} costs {spot.usd_per_hour} usd_per_hour, above {on_demand.usd_per_hour} on demand; "
            "correct it, or leave the spot price empty to have none"
        )


def _check(price: Price) -> None:
    for name, value in (("device", price.device), ("zone", price.zone)):
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"a price has {name} {value!r}; name one")
    if price.market not in get_args(PriceMarket):
        raise ConfigurationError(f"{price}: market {price.market!r}; write on_demand or spot")
    usd = price.usd_per_hour
    if usd is None:
        return
    if isinstance(usd, bool) or not isinstance(usd, (int, float)) or not 0 < usd < math.inf:
        raise ConfigurationError(
            f"{price}: usd_per_hour is {usd!r}; give a number above 0, or leave it empty if unavailable"
        )
