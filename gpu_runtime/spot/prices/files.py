"""Price books as files: TOML, JSON or CSV."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_runtime.spot.prices.price_book import Price, PriceBook
from storage.errors import ConfigurationError, quoted
from storage.text import read_text_file

_REQUIRED = ("device", "market", "zone")
_FIELDS = (*_REQUIRED, "usd_per_hour", "source")


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
    readers = {".toml": _toml_rows, ".json": _json_rows, ".csv": _csv_rows}
    if path.suffix not in readers:
        raise ConfigurationError(
            f"price file {path}: suffix {path.suffix!r}; name a .toml, .json or .csv file"
        )
    text = read_text_file(path, f"price file {path}", ConfigurationError)
    try:
        rows = readers[path.suffix](text)
    except (ValueError, RecursionError, csv.Error) as error:  # each parser's own errors are ValueErrors
        raise ConfigurationError(f"price file {path} cannot be read: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ConfigurationError(f"price file {path}: no prices in it; write at least one row")
    prices = [_price(row, f"price file {path}, row {number}") for number, row in enumerate(rows, start=1)]
    try:
        return PriceBook(prices)
    except ConfigurationError as error:
        raise ConfigurationError(f"price file {path}: {error}") from error


def _toml_rows(text: str) -> Any:
    content = tomllib.loads(text)
    unknown = sorted(set(content) - {"price"})
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; write the prices as [[price]] tables")
    return content.get("price")


def _json_rows(text: str) -> Any:
    return json.loads(text)


def _csv_rows(text: str) -> Any:
    return list(csv.DictReader(text.splitlines(), restkey="more columns", strict=True))


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
    return Price(row["device"], row["market"], row["zone"], usd, row.get("source") or "")
