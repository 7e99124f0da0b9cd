"""The devices and the spot market of a simulated run: prices, and arrivals and losses of instances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.lent_devices import ASSUMED_LOAD, ServingLoad
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.spot.prices.price_book import PriceMarket
from gpu_runtime.spot.prices.price_history import PriceHistory, read_price_history
from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.trace import summarise
from storage.config.run_config import RunConfig
from storage.config.what_if import WhatIfQuestion
from storage.errors import ConfigurationError, quoted
from storage.record.records import Market

MOST_TOGETHER = 16
"""Most devices of one machine that may share samples; comparing more ways to divide them takes long."""


def offer_of(config: RunConfig, question: WhatIfQuestion) -> FleetPlan:
    """Return the available devices and their prices.

    Raises:
        ConfigurationError: instances cannot be filled, or prices cannot be read.
    """
    runtime, price, each = config.runtime, config.price, question.per_instance
    if each and runtime.least_spot % each:
        raise ConfigurationError(
            f"--per-instance is {each}, but {runtime.least_spot} spot devices are not a whole number of such "
            "instances; change --spot or --per-instance"
        )
    if config.sequence_parallel.largest > 1 and not each and runtime.least_workers > MOST_TOGETHER:
        raise ConfigurationError(
            f"{runtime.least_workers} devices that may share samples would be on one machine, above "
            f"{MOST_TOGETHER}; give the number per instance with --per-instance"
        )
    prices: dict[Market, PriceHistory] = {
        "reserved" if market == "on_demand" else "spot": known
        for market, known in price_histories(question).items()
    }
    usd = {market: known.mean(0.0, known.length_s) for market, known in prices.items()}
    return FleetPlan(
        runtime.least_reserved, runtime.least_spot, runtime.trainer_workers,
        usd.get("reserved", price.reserved_usd_per_hour), usd.get("spot", price.spot_usd_per_hour),
        instance_devices=each, prices=prices,
        serving=_serving_of(question.serving) if question.serving else ASSUMED_LOAD,
    )  # fmt: skip


def price_histories(question: WhatIfQuestion) -> Mapping[PriceMarket, PriceHistory]:
    """Return the changing prices by market; empty without a price file.

    Raises:
        ConfigurationError: the file cannot be read, or a zone is named without a file.
    """
    if question.prices:
        return read_price_history(question.prices, question.zone)
    if question.zone:
        raise ConfigurationError(
            f"--zone {quoted(question.zone)} belongs to a price file; name the file with --prices"
        )
    return {}


def _serving_of(said: str) -> ServingLoad:
    try:
        mean, swing, slack_s = map(float, said.split(","))
    except ValueError:
        mean = swing = slack_s = math.nan
    if not (0 <= mean <= 1 and 0 <= swing <= 1 and 0 <= slack_s <= 3600):
        raise ConfigurationError(
            f"--serving is {quoted(said)}; give the share of busy devices and half of its swing over a day, "
            "each from 0 to 1, and the seconds that a request can wait, from 0 to 3600, as in 0.5,0.3,2"
        )
    return ServingLoad(mean, swing, slack_s)


def serving_in_words(load: ServingLoad) -> str:
    """Describe the load of the serving fleet that lends, and whether it is assumed."""
    known = "assumed" if load == ASSUMED_LOAD else "as given, with assumed noise"
    return (
        f"lending: {load.mean:.0%} of the serving fleet is busy, give or take {load.swing:.0%} over a day, "
        f"and its requests can wait {load.slack_s:g} s ({known})"
    )


def market_of(question: WhatIfQuestion) -> SpotMarket:
    """Return the spot market of a question.

    Raises:
        ConfigurationError: both a trace and the figures to draw one are given.
        TraceError: the trace cannot be read.
    """
    shape, each = TraceShape(capacity=1, length_s=1.0), max(1, question.per_instance)
    loss_rate, joint = question.given("loss_rate"), question.given("joint")
    if question.trace:
        if loss_rate is not None or joint is not None:
            raise ConfigurationError("--trace decides which instances are lost; omit --loss-rate and --joint")
        return SpotMarket(read_trace(question.trace), shape, notice_s=question.notice, devices=each)
    rate = 3600 / shape.mean_lifetime_s if loss_rate is None else loss_rate
    joint = shape.multi_loss_share if joint is None else joint
    if rate == 0:
        return SpotMarket(None, shape, losses=False, devices=each)
    shape = TraceShape(capacity=1, length_s=1.0, mean_lifetime_s=3600 / rate, multi_loss_share=joint)
    return SpotMarket(None, shape, notice_s=question.notice, devices=each)


def market_in_words(market: SpotMarket, question: WhatIfQuestion) -> str:
    """Describe when spot instances come and go."""
    notice = f", {market.notice_s:g} s of notice" if market.notice_s else ", without notice"
    if market.recorded is not None:
        known = summarise(market.recorded)
        rate = known.losses_per_instance_hour or 0.0
        return (
            f"windows of {Path(question.trace).name}: {known.length_s / 3600:.1f} h, {known.losses} losses, "
            f"{rate:.2f} per instance-hour{notice}"
        )
    if not market.losses:
        return "no instance is lost"
    shape = market.shape
    return (
        f"generated traces: {3600 / shape.mean_lifetime_s:.2f} losses per instance-hour, "
        f"{shape.multi_loss_share:.0%} of them joint; a replacement comes after "
        f"{shape.mean_reacquire_s / 60:.0f} min{notice}"
    )


def prices_in_words(offer: FleetPlan) -> str:
    """Describe the hourly cost of devices."""

    def said(market: Market) -> str:
        usd, prices = offer.usd_per_hour(market), offer.prices.get(market)
        if prices is None:
            return f"${usd:g}"
        low, high = min(prices.usd_per_hour), max(prices.usd_per_hour)
        return f"${low:g} to ${high:g} (${usd:.4g} on average over {prices.length_s / 3600:.1f} h)"

    return f"{said('reserved')} an hour reserved, {said('spot')} spot"
