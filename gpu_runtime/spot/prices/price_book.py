"""Device prices: the built-in ones, those in a file, and a price book's checks.

A book refuses invalid prices and never treats "none" as free. The built-in prices come from public lists and
spot-price histories as of November 2026. Spot prices change hourly, so these show the order of magnitude, not
a bill. If only the range over a provider's zones is known, its ends are listed under `lowest` and `highest`;
GCP's ends belong to the two zones whose discounts they match.
"""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from storage.errors import ConfigurationError, PriceNotFoundError, quoted
from storage.text import read_text_file

PriceMarket = Literal["on_demand", "spot"]

_REQUIRED = ("device", "market", "zone")
_FIELDS = (*_REQUIRED, "usd_per_hour", "source")

_ROWS: tuple[tuple[str, PriceMarket, str, float], ...] = (
    ("H100", "on_demand", "aws/lowest", 6.88),
    ("H100", "spot", "aws/lowest", 1.78),
    ("H100", "on_demand", "aws/highest", 6.88),
    ("H100", "spot", "aws/highest", 2.84),
    ("H100", "on_demand", "gcp/us-east4", 10.98),
    ("H100", "spot", "gcp/us-east4", 2.51),
    ("H100", "on_demand", "gcp/us-central1", 10.98),
    ("H100", "spot", "gcp/us-central1", 3.35),
    ("H200", "on_demand", "aws/lowest", 7.91),
    ("H200", "spot", "aws/lowest", 2.01),
    ("H200", "on_demand", "aws/highest", 7.91),
    ("H200", "spot", "aws/highest", 3.15),
)


@dataclass(frozen=True)
class Price:
    """An offer of one device.

    Attributes:
        device: kind of device, such as `H100`.
        market: `on_demand` or `spot`.
        zone: provider and zone, such as `gcp/us-east4`.
        usd_per_hour: dollars per hour of one device; None if the offer is unavailable.
    """

    device: str
    market: PriceMarket
    zone: str
    usd_per_hour: float | None

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
        for spot in self._prices.values():
            on_demand = self._prices.get((spot.device, "on_demand", spot.zone))
            most = on_demand and on_demand.usd_per_hour
            if spot.market == "spot" and spot.usd_per_hour and most and spot.usd_per_hour > most:
                raise ConfigurationError(
                    f"{spot} costs {spot.usd_per_hour} usd_per_hour, above {most} on demand; "
                    "correct it, or leave the spot price empty to have none"
                )

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

    def _there_are(self, device: str, market: str) -> str:
        """Return a message that names the nearest existing offers."""
        there = [price for price in self._prices.values() if price.usd_per_hour is not None]
        if zones := sorted(p.zone for p in there if (p.device, p.market) == (device, market)):
            return f"{device} {market} has a price in {', '.join(zones)}"
        offers = sorted({f"{price.device} {price.market}" for price in there})
        return f"it has prices of {', '.join(offers)}" if offers else "the price book is empty"


def known_prices() -> PriceBook:
    """Return the built-in price book; a user's price file takes precedence."""
    return PriceBook(Price(device, market, zone, usd) for device, market, zone, usd in _ROWS)


def read_prices(path: str | Path) -> PriceBook:
    """Read a price book in the format of its suffix.

    A row has `device`, `market` (`on_demand` or `spot`), `zone`, `usd_per_hour` and, optionally, `source`.
    An empty or missing `usd_per_hour` means that the offer is unavailable. `.toml`: tables `[[price]]`;
    `.json`: a list of objects; `.csv`: a header and rows.

    Raises:
        ConfigurationError: the file is missing, its suffix is unknown, a row is malformed (the message names
            the file and the row), or `PriceBook` refuses the prices.
    """
    path = Path(path)
    if path.suffix not in (".toml", ".json", ".csv"):
        raise ConfigurationError(
            f"price file {path}: suffix {path.suffix!r}; name a .toml, .json or .csv file"
        )
    text = read_text_file(path, f"price file {path}", ConfigurationError)
    try:
        if path.suffix == ".csv":
            rows = list(csv.DictReader(text.splitlines(), restkey="more columns", strict=True))
        elif path.suffix == ".json":
            rows = json.loads(text)
        else:
            content = tomllib.loads(text)
            unknown = sorted(set(content) - {"price"})
            if unknown:
                raise ValueError(f"unknown {', '.join(unknown)}; write the prices as [[price]] tables")
            rows = content.get("price")
    except (ValueError, RecursionError, csv.Error) as error:  # each parser's own errors are ValueErrors
        raise ConfigurationError(f"price file {path} cannot be read: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ConfigurationError(f"price file {path}: no prices in it; write at least one row")
    prices = [_price(row, f"price file {path}, row {number}") for number, row in enumerate(rows, start=1)]
    try:
        return PriceBook(prices)
    except ConfigurationError as error:
        raise ConfigurationError(f"price file {path}: {error}") from error


def _price(row: object, where: str) -> Price:
    if not isinstance(row, Mapping):
        raise ConfigurationError(f"{where}: expected a row with {', '.join(_FIELDS)}, got {quoted(row)}")
    unknown = [str(name) for name in row if name not in _FIELDS]
    missing = [name for name in _REQUIRED if not row.get(name)]
    if unknown or missing:
        problem = f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise ConfigurationError(f"{where}: {problem}; a row has {', '.join(_FIELDS)}")
    usd = row.get("usd_per_hour")
    if isinstance(usd, str):
        try:
            usd = float(usd) if usd.strip() else None
        except ValueError as error:
            raise ConfigurationError(
                f"{where}: usd_per_hour {quoted(usd)}; give a number or leave it empty"
            ) from error
    return Price(row["device"], row["market"], row["zone"], usd)


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
