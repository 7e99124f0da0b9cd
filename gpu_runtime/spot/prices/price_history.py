"""A device's prices over time, each valid until the next, and their files."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import cast, get_args

from gpu_runtime.spot.prices.price_book import PriceMarket
from storage.errors import ConfigurationError, quoted
from storage.text import read_text_file

_REQUIRED = ("time", "market", "usd_per_hour")
_COLUMNS = (*_REQUIRED, "zone")


@dataclass(frozen=True)
class PriceHistory:
    """A device's prices in one market, each valid from its moment until the next.

    Attributes:
        from_s: at least one moment in seconds, ascending. The first price is also valid earlier.
        usd_per_hour: dollars per hour at each moment.
        length_s: end of the known prices; the last price is also valid later.
    """

    from_s: tuple[float, ...]
    usd_per_hour: tuple[float, ...]
    length_s: float

    def price_at(self, at_s: float) -> float:
        """Return the dollars per hour at a moment."""
        return self.usd_per_hour[max(0, bisect_right(self.from_s, at_s) - 1)]

    def mean(self, began_s: float, ended_s: float) -> float:
        """Return the average dollars per hour from `began_s` to `ended_s`, which is no earlier."""
        if ended_s <= began_s:
            return self.price_at(began_s)
        first, last = bisect_right(self.from_s, began_s), bisect_right(self.from_s, ended_s)
        turns = (began_s, *self.from_s[first:last], ended_s)
        paid = sum((end - begin) * self.price_at(begin) for begin, end in pairwise(turns))
        return paid / (ended_s - began_s)

    def beginning(self, at_s: float) -> PriceHistory:
        """Return the same prices with time starting at a moment of this history."""
        moments = tuple(moment - at_s for moment in self.from_s)
        return PriceHistory(moments, self.usd_per_hour, self.length_s - at_s)


def read_price_history(path: str | Path, zone: str = "") -> dict[PriceMarket, PriceHistory]:
    """Read prices over time from a CSV file, for the markets in it.

    The file has a header `time,market,usd_per_hour`, optionally with `zone`, and rows in any order. Times are
    seconds, or ISO times (UTC unless they name another zone). The file's first moment becomes 0.

    Args:
        zone: zone whose prices are read; may be empty if the file has only one.

    Raises:
        ConfigurationError: the file is missing, a row is malformed (the message names the line), a market has
            two prices at one moment, `zone` is not in the file, or is empty although it has several.
    """
    name = f"price file {path}"
    text = read_text_file(path, name, ConfigurationError)
    rows = list(_rows(text, name))
    zones = sorted({row.zone for row in rows})
    if not rows:
        raise ConfigurationError(f"{name}: no prices in it; write at least one row below the header")
    if zone not in zones and (zone or len(zones) > 1):
        raise ConfigurationError(
            f"{name}: it has no prices of zone {quoted(zone)}; name one of its zones: "
            f"{', '.join(map(quoted, zones))}"
        )
    wanted = sorted((row for row in rows if row.zone == (zone or zones[0])), key=lambda row: row.at_s)
    first_s, last_s = wanted[0].at_s, wanted[-1].at_s
    found: defaultdict[PriceMarket, list[_Row]] = defaultdict(list)
    for row in wanted:
        before = found[row.market]
        if before and before[-1].at_s == row.at_s:
            raise ConfigurationError(
                f"{name}:{row.line}: another price of {row.market} at the time of line {before[-1].line}; "
                "keep one"
            )
        before.append(row)
    return {
        market: PriceHistory(
            tuple(row.at_s - first_s for row in of), tuple(row.usd_per_hour for row in of), last_s - first_s
        )
        for market, of in found.items()
    }


@dataclass(frozen=True)
class _Row:
    line: int
    at_s: float
    market: PriceMarket
    usd_per_hour: float
    zone: str


def _rows(text: str, name: str) -> Iterator[_Row]:
    reader = csv.DictReader(text.splitlines(), restkey="more columns", strict=True)
    columns = list(reader.fieldnames or ())
    if not set(_REQUIRED) <= set(columns) <= set(_COLUMNS):
        raise ConfigurationError(
            f"{name}:1: the header is {quoted(','.join(columns))}; write time,market,usd_per_hour, and zone "
            "where there are several"
        )
    in_seconds: bool | None = None
    try:
        for cells in reader:
            where = f"{name}:{reader.line_num}"
            if "more columns" in cells or None in cells.values():
                raise ConfigurationError(
                    f"{where}: number of columns differs from the header; write one value per column"
                )
            at_s, is_number = _time(cells["time"].strip(), where)
            if in_seconds not in (None, is_number):
                raise ConfigurationError(f"{where}: seconds and ISO times in one file; use only one form")
            in_seconds = is_number
            market = cells["market"]
            if market not in get_args(PriceMarket):
                raise ConfigurationError(f"{where}: market {quoted(market)}; write on_demand or spot")
            usd = _number(cells["usd_per_hour"])
            # Price feeds write 0 for "no offer", so it is refused, as in a price book.
            if usd is None or not 0 < usd <= 1e6:
                raise ConfigurationError(
                    f"{where}: usd_per_hour {quoted(cells['usd_per_hour'])}; give a number above 0, up to 1e6"
                )
            yield _Row(reader.line_num, at_s, cast(PriceMarket, market), usd, cells.get("zone") or "")
    except csv.Error as error:
        raise ConfigurationError(f"{name}:{reader.line_num}: not CSV ({error})") from error


def _time(time: str, where: str) -> tuple[float, bool]:
    """Return the time in seconds, and True if it was given in seconds."""
    seconds = _number(time)
    if seconds is not None and math.isfinite(seconds):
        return seconds, True
    try:
        moment = datetime.fromisoformat(time)
    except ValueError as error:
        raise ConfigurationError(
            f"{where}: time {quoted(time)}; write seconds, or an ISO time as in 2026-11-24T10:00:00Z"
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), False


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
