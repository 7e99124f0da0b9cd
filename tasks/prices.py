"""A run's prices from its price book, before anything starts."""

from __future__ import annotations

from collections.abc import Collection

from gpu_runtime.spot.prices.price_book import PriceMarket, known_prices, read_prices
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, PriceNotFoundError

_ZONES = {"H100": "gcp/us-east4", "H200": "aws/highest"}
"""Zone of the built-in book that gives a GPU's default prices."""


def with_prices(config: RunConfig, on_demand: bool = False) -> RunConfig:
    """Return the configuration with the two prices of its price book; unchanged if it names no book.

    The run keeps these prices to its end, even if the file changes.

    Args:
        on_demand: True if all devices are rented on demand, whatever the settings say.

    Raises:
        ConfigurationError: the book cannot be read, an offer is missing or unavailable, or the spot price
            is above the on-demand price.
    """
    price = config.price
    if not price.book:
        return config
    book = known_prices() if price.book == "builtin:known" else read_prices(price.book)
    try:
        reserved_usd = book.usd_per_hour(price.device, "on_demand", price.reserved_zone)
        # A run without spot devices needs no spot offer.
        spot_usd = (
            book.usd_per_hour(price.device, "spot", price.spot_zone)
            if config.runtime.spot_workers and not on_demand
            else reserved_usd
        )
    except PriceNotFoundError as error:
        raise ConfigurationError(f"price.book = {price.book!r}: {error}") from error
    if spot_usd > reserved_usd:
        raise ConfigurationError(
            f"price.book = {price.book!r}: {price.device} spot in {price.spot_zone} costs {spot_usd} "
            f"usd_per_hour, above {reserved_usd} on demand in {price.reserved_zone}; choose another zone in "
            "price.offer"
        )
    return config.changed(price={"reserved_usd_per_hour": reserved_usd, "spot_usd_per_hour": spot_usd})


def with_gpu_prices(
    config: RunConfig, reserved: str, spot: str, changing: Collection[PriceMarket] = ()
) -> RunConfig:
    """Return the configuration with known GPU prices where it sets none.

    Args:
        reserved, spot: kinds of GPU.
        changing: markets whose changing prices come from elsewhere.

    Raises:
        ConfigurationError: a missing price is unknown.
    """
    offers: dict[str, tuple[str, PriceMarket]] = {
        "reserved_usd_per_hour": (reserved, "on_demand"), "spot_usd_per_hour": (spot, "spot")
    }  # fmt: skip
    given = config.price.model_fields_set
    asked = {name: offer for name, offer in offers.items() if name not in given and offer[1] not in changing}
    if config.price.book or not asked:
        return config
    if missing := {name: kind for name, (kind, _) in asked.items() if kind not in _ZONES}:
        settings = " and ".join(f"price.{name}" for name in missing)
        raise ConfigurationError(
            f"the price of an {next(iter(missing.values()))} is unknown; give the dollars per hour of a "
            f"device: {settings}, or what-if's --price"
        )
    book = known_prices()
    usd = {name: book.usd_per_hour(kind, market, _ZONES[kind]) for name, (kind, market) in asked.items()}
    return config.changed(price=usd)
