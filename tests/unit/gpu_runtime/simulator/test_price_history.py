"""Prices over time: what holds when, what a time costs, the files they come from, and runs that pay them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.simulator.comparison.policies import policies_of
from gpu_runtime.simulator.comparison.to_score import discount_of
from gpu_runtime.simulator.comparison.what_if import Comparison, PolicyAnswer
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.run import Simulation
from gpu_runtime.simulator.simulated_run import SimulatedPlan, SimulatedRun
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.spot.prices.price_history import PriceHistory, read_price_history
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.replay import Replay
from storage.errors import ConfigurationError
from tests.simulated import small_config, small_profile, spot_trace, times_of

RISES = PriceHistory((0.0, 60.0), (2.5, 9.9), 60.0)
ALL_STAY = spot_trace(*((0.0, "add", f"s{number}") for number in range(4)))


def test_a_price_holds_until_the_next_one():
    assert [RISES.price_at(at_s) for at_s in (-5, 0, 59.9, 60, 1e9)] == [2.5, 2.5, 2.5, 9.9, 9.9]
    # 40 s at 2.5 and 20 s at 9.9.
    assert RISES.mean(20, 80) == pytest.approx((40 * 2.5 + 20 * 9.9) / 60)
    assert RISES.mean(60, 60) == 9.9 and RISES.mean(0, 60) == 2.5
    later = RISES.beginning(50)
    assert (later.price_at(9.9), later.price_at(10), later.length_s) == (2.5, 9.9, 10.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.floats(0.1, 50)), min_size=1, max_size=6, unique_by=lambda p: p[0]
    ),
    st.lists(st.floats(-10, 70), min_size=3, max_size=3).map(sorted),
)
def test_what_two_times_cost_is_what_both_together_do(prices: list[tuple[int, float]], turns: list[float]):
    moments, usd = zip(*sorted(prices), strict=True)
    history = PriceHistory(tuple(map(float, moments)), usd, float(moments[-1]))
    first, middle, last = turns
    parts = [(end - begin) * history.mean(begin, end) for begin, end in ((first, middle), (middle, last))]
    assert (last - first) * history.mean(first, last) == pytest.approx(sum(parts))
    assert min(usd) * (1 - 1e-9) <= history.mean(first, last) <= max(usd) * (1 + 1e-9)


def written(folder: Path, *rows: str, header: str = "time,market,usd_per_hour") -> Path:
    path = folder / "prices.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_file_in_any_order_with_seconds_or_iso_times(tmp_path: Path):
    seconds = written(tmp_path, "160,spot,9.9", "100,spot,2.5", "130,on_demand,8")
    assert read_price_history(seconds) == {
        "spot": RISES, "on_demand": PriceHistory((30.0,), (8.0,), 60.0),
    }  # fmt: skip
    iso = written(
        tmp_path, "2026-11-24T10:01:00Z,spot,9.9,b", "2026-11-24T11:00:00+01:00,spot,2.5,b",
        "2026-11-24T00:00,spot,1,a", header="time,market,usd_per_hour,zone",
    )  # fmt: skip
    assert read_price_history(iso, "b") == {"spot": RISES}
    with pytest.raises(
        ConfigurationError, match=r"it has no prices of zone ''; name one of its zones: 'a', 'b'"
    ):
        read_price_history(iso)


def run(decided: bool, **more: Any) -> SimulatedRun:
    fleet = FleetPlan(1, 4, 1, 10.0, 2.5, "cheapest" if decided else None, **more)
    plan = SimulatedPlan(fleet)
    return Simulation(small_config(4), plan, times_of(), Replay(ALL_STAY), keeps_intervals=True).run()


def test_dollars_are_the_price_over_the_time_that_each_device_is_paid_for():
    constant, rising = run(False), run(False, prices={"spot": RISES})
    assert (rising.wall, rising.paid) == (constant.wall, constant.paid)
    # All are there from 0 to 142 s: 60 s at 2.5 and 82 at 9.9, for four.
    assert constant.usd == pytest.approx((142 * 10 + 4 * 142 * 2.5) / 3600)
    assert rising.usd == pytest.approx((142 * 10 + 4 * (60 * 2.5 + 82 * 9.9)) / 3600)
    assert sum(one.usd for one in rising.intervals) / 1e9 == pytest.approx(rising.usd)
    assert rising.usd_per_hour["reserved"] == 10.0
    (spot,) = policies_of(["spot"])
    discount = discount_of([PolicyAnswer(spot, {}, runs=[rising])])
    assert discount == pytest.approx(1 - (60 * 2.5 + 82 * 9.9) / 142 / 10)
    both = run(False, prices={"spot": RISES, "reserved": PriceHistory((0.0, 42.0), (10.0, 20.0), 42.0)})
    assert both.usd == pytest.approx(rising.usd + 100 * 10 / 3600)


def test_how_many_devices_are_rented_follows_the_price_of_the_moment():
    # At 2.5 one device pays, at 9.9 none: the second rollout begins at 46 s, the third at 77.
    assert run(True).wanted == [4, 1, 1, 1]
    assert run(True, prices={"spot": RISES}).wanted == [4, 1, 0, 0]


def test_every_policy_of_a_future_begins_at_the_same_moment_of_long_prices():
    hours = tuple(range(0, 360000, 3600))
    prices = PriceHistory(tuple(map(float, hours)), tuple(1.0 + number for number in range(100)), 356400.0)
    offer = FleetPlan(1, 4, 1, 10.0, 2.5, prices={"spot": prices})
    market = SpotMarket(None, TraceShape(capacity=1, length_s=1.0), losses=False)
    policies = policies_of(["spot", "pushed"])
    runs = Comparison(small_config(2), offer, small_profile(), market, 3).runs(policies)
    paid = {name: [run.usd_per_hour["spot"] for run in of] for name, of in runs.items()}
    # A run takes minutes, so that each has one price, or two neighbouring ones.
    assert paid["spot"] == pytest.approx(paid["pushed"], abs=1.0)
    assert len({round(price) for price in paid["spot"]}) > 1
    offer = FleetPlan(1, 4, 1, 10.0, 2.5, prices={"spot": RISES})
    (short,) = Comparison(small_config(2), offer, small_profile(), market, 1).runs(policies[:1])["spot"]
    after_s = short.wall_s - 60
    assert short.usd_per_hour["spot"] == pytest.approx((60 * 2.5 + after_s * 9.9) / short.wall_s), "from 0 on"
