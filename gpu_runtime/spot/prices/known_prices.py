"""Built-in default prices; a price file of the user takes precedence.

From public price lists and spot-price histories as of November 2026. Spot prices change hourly, so take these
for the order of magnitude, not for a bill. Where only the range over a provider's zones is known, its ends
are listed under `lowest` and `highest`; GCP's ends belong to the two zones whose discounts they match.
"""

from __future__ import annotations

from gpu_runtime.spot.prices.price_book import Price, PriceBook, PriceMarket

_SOURCE = "public price lists, noted 2026-11"

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


def known_prices() -> PriceBook:
    """Return the built-in price book."""
    return PriceBook(Price(device, market, zone, usd, _SOURCE) for device, market, zone, usd in _ROWS)
