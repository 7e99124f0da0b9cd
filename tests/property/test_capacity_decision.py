"""What holds of every decision on how many instances to rent."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.scheduling.capacity_decision import IterationForecast, RentingTerms, decide_capacity

seconds = st.floats(0.1, 1e4)
forecasts = st.builds(
    IterationForecast,
    batches=st.integers(0, 200),
    batch_s=seconds,
    rest_s=seconds,
    start_s=st.floats(0, 600),
    left=st.integers(1, 50),
)
terms = st.builds(
    RentingTerms,
    reserved=st.integers(1, 16),
    reserved_usd_per_hour=st.floats(0.5, 100),
    spot_usd_per_hour=st.floats(0.01, 100),
    most=st.integers(0, 64),
    used_beside=st.sampled_from((0.0, 2.0, math.inf)),
)
held = st.integers(0, 64)
dearer = st.floats(1.001, 20)


@given(forecasts, terms, held)
def test_it_keeps_to_the_settings_and_says_why(forecast: IterationForecast, terms: RentingTerms, held: int):
    decision = decide_capacity(forecast, terms, held)
    assert 0 <= decision.wanted <= terms.most
    assert str(decision.wanted) in decision.reason and "$-" not in decision.reason
    assert decision == decide_capacity(forecast, terms, held)


@given(forecasts, terms, held, dearer)
def test_dearer_instances_are_never_more(
    forecast: IterationForecast, terms: RentingTerms, held: int, factor: float
):
    costlier = replace(terms, spot_usd_per_hour=factor * terms.spot_usd_per_hour)
    assert decide_capacity(forecast, costlier, held).wanted <= decide_capacity(forecast, terms, held).wanted


@given(forecasts, terms, held, dearer)
def test_the_more_waiting_costs_the_more_are_rented(
    forecast: IterationForecast, terms: RentingTerms, held: int, factor: float
):
    costlier = replace(terms, reserved_usd_per_hour=factor * terms.reserved_usd_per_hour)
    assert decide_capacity(forecast, costlier, held).wanted >= decide_capacity(forecast, terms, held).wanted


@given(forecasts, terms, held, st.floats(1.0, 1000.0))
def test_the_unit_of_money_does_not_matter(
    forecast: IterationForecast, terms: RentingTerms, held: int, factor: float
):
    factor = 2.0 ** round(factor).bit_length()  # exact in floating point
    other = replace(
        terms,
        reserved_usd_per_hour=factor * terms.reserved_usd_per_hour,
        spot_usd_per_hour=factor * terms.spot_usd_per_hour,
    )
    assert decide_capacity(forecast, other, held).wanted == decide_capacity(forecast, terms, held).wanted


@given(forecasts, terms, held)
def test_no_device_is_rented_that_would_roll_nothing_out(
    forecast: IterationForecast, terms: RentingTerms, held: int
):
    of_use = max(0, forecast.batches - terms.reserved)
    decision = decide_capacity(forecast, replace(terms, used_beside=0.0), min(held, of_use))
    assert decision.wanted <= of_use


@given(forecasts, terms, held)
def test_the_decision_is_never_dearer_than_what_is_held(
    forecast: IterationForecast, terms: RentingTerms, held: int
):
    held = min(held, terms.most)
    wanted = decide_capacity(forecast, terms, held).wanted
    assert terms.cost_usd(forecast, wanted) <= terms.cost_usd(forecast, held)
    assert decide_capacity(forecast, terms, wanted).wanted >= wanted, "no device comes to be given back again"
