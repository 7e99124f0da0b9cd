"""The price book: what it knows, what it refuses, and the files it is read from."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from gpu_runtime.spot.prices.price_book import Price, PriceBook, known_prices, read_prices
from storage.errors import ConfigurationError, PriceNotFoundError

A_ON_DEMAND = Price("H100", "on_demand", "a", 10.0)
A_SPOT = Price("H100", "spot", "a", 2.5)
B_SPOT = Price("H100", "spot", "b", 2.0)
C_SPOT = Price("H100", "spot", "c", None)
ALL = [A_ON_DEMAND, A_SPOT, B_SPOT, C_SPOT]

TOML = """
[[price]]
device = "H100"
market = "spot"
zone = "a"
usd_per_hour = 2.5
source = "the bill of May"
[[price]]
device = "H100"
market = "spot"
zone = "c"
"""
CSV = "device,market,zone,usd_per_hour,source\nH100,spot,a,2.5,the bill of May\nH100,spot,c,,\n"
JSON = json.dumps(
    [
        {"device": "H100", "market": "spot", "zone": "a", "usd_per_hour": 2.5, "source": "the bill of May"},
        {"device": "H100", "market": "spot", "zone": "c", "usd_per_hour": None},
    ]
)


@pytest.mark.parametrize(
    ("prices", "asked", "message"),
    [
        (ALL, ("H100", "spot", "d"), "no price of H100 spot in d; H100 spot has a price in a, b"),
        (ALL, ("H100", "spot", "c"), "H100 spot in c is unavailable; H100 spot has a price in a, b"),
        (ALL, ("B200", "spot", "a"),
         "no price of B200 spot in a; it has prices of H100 on_demand, H100 spot"),
        ([C_SPOT], ("H100", "spot", "c"), "H100 spot in c is unavailable; the price book is empty"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_with_what_is_and_never_free(prices, asked, message):
    with pytest.raises(PriceNotFoundError) as refused:
        PriceBook(prices).usd_per_hour(*asked)
    assert str(refused.value) == message
    assert isinstance(pickle.loads(pickle.dumps(refused.value)), LookupError)


@pytest.mark.parametrize("usd", [0, 0.0, -1, float("nan"), float("inf"), True, "2.5"])
def test_prices_that_are_none(usd):
    with pytest.raises(ConfigurationError, match=r"H100 spot in a: usd_per_hour is .*; give a number"):
        PriceBook([Price("H100", "spot", "a", usd)])


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ([A_ON_DEMAND, Price("H100", "spot", "a", 10.01)], "costs 10.01 usd_per_hour, above 10.0 on demand"),
        ([A_SPOT, A_SPOT], "H100 spot in a has two prices"),
        ([Price("", "spot", "a", 1.0)], "a price has device ''"),
        ([Price("H100", "spot", " ", 1.0)], "a price has zone ' '"),
        ([Price("H100", "reserved", "a", 1.0)], "market 'reserved'; write on_demand or spot"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_books_that_contradict_themselves(prices, message):
    with pytest.raises(ConfigurationError, match=message):
        PriceBook(prices)


def test_prices_that_are_there():
    assert PriceBook(ALL).usd_per_hour("H100", "spot", "a") == 2.5
    assert known_prices().usd_per_hour("H100", "on_demand", "gcp/us-east4") == 10.98
    # Spot may cost as much as on demand, and stand alone.
    PriceBook([A_ON_DEMAND, Price("H100", "spot", "a", 10.0), Price("H100", "spot", "b", 99.0)])


@pytest.mark.parametrize(("suffix", "text"), [("toml", TOML), ("csv", "\ufeff" + CSV), ("json", JSON)])
def test_files_of_three_forms_say_the_same(tmp_path: Path, suffix, text):
    path = tmp_path / f"prices.{suffix}"
    path.write_text(text, encoding="utf-8")
    book = read_prices(path)
    assert book.usd_per_hour("H100", "spot", "a") == 2.5
    with pytest.raises(PriceNotFoundError, match="H100 spot in c is unavailable"):
        book.usd_per_hour("H100", "spot", "c")
