"""A serving fleet that lends, under a virtual clock: its objective, its queue, and calls that come late."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.lending import DEVICES, LOAD, MARGIN, TERMS, LendingRun, call_figures, lent_over_time
from benchmarks.serving_fleet import (
    DiurnalLoad,
    ServingFleet,
    ServingRequest,
    ServingTerms,
    idle_device_s,
    serve_alone,
)
from examples.lending_server import Lender, LoadForecast, Loan
from storage.record.records import StateInterval

TICK_S = 0.05
UNTIL_S = LOAD.day_s


class VirtualDay:
    """A day of the benchmark's fleet, with a run that wants devices and releases what is called back.

    Args:
        terms: of the fleet.
        margin: of the lender.
        wanted: devices that the run wants.
        release_s: seconds from a call to the run's release.
        seed: of the requests.
    """

    def __init__(
        self, terms: ServingTerms, margin: int, wanted: int = 4, release_s: float = 3.0, seed: int = 0
    ) -> None:
        self.now_s = 0.0
        self.requests = LOAD.requests(-terms.trend_s, UNTIL_S, seed)
        self.lender = Lender(DEVICES, margin, hold_s=terms.lead_s, clock=lambda: self.now_s)
        self.lender.wanted(wanted)
        self.fleet = ServingFleet(self.requests, self.lender, terms)
        for tick in range(round(UNTIL_S / TICK_S)):
            self.now_s = tick * TICK_S
            for loan in self.lender.loans:
                called = loan.called_back_s is not None and self.now_s >= loan.called_back_s + release_s
                if called and loan.returned_s is None:
                    self.lender.release(loan.device)
            self.fleet.advance(self.now_s)
        self.fleet.end()

    @property
    def violations_beyond(self) -> set[int]:
        alone = serve_alone(self.requests, DEVICES, TERMS, UNTIL_S)
        assert len(self.fleet.latencies) == len(alone.latencies) == len(self.requests)
        return self.fleet.late_windows() - alone.late_windows()

    @property
    def lent_share(self) -> float:
        lent_s = sum((loan.returned_s or UNTIL_S) - loan.lent_s for loan in self.lender.loans)
        return lent_s / idle_device_s(self.requests, DEVICES, UNTIL_S)


@pytest.mark.parametrize("seed", range(3))
def test_the_objective_holds_while_the_load_rises_and_devices_are_lent(seed: int):
    day = VirtualDay(TERMS, MARGIN, seed=seed)
    morning = [loan for loan in day.lender.loans if loan.lent_s < 10.0]
    assert len(morning) >= 3, "lent at night"
    called = [loan.called_back_s for loan in morning]
    assert all(at_s is not None and at_s < UNTIL_S / 2 for at_s in called), "called back while the load rose"
    assert day.violations_beyond == set()
    assert day.lent_share >= 0.25


def test_a_fleet_that_calls_back_too_late_misses_its_objective():
    """It looks no time ahead and keeps no margin: by the release the load has outgrown what serves."""
    late = VirtualDay(replace(TERMS, lead_s=0.0), margin=0)
    assert len(late.violations_beyond) >= 2


def test_a_run_that_gives_back_too_late_makes_it_miss_its_objective():
    assert VirtualDay(TERMS, MARGIN, release_s=20.0).violations_beyond


def test_what_nobody_wants_is_not_lent():
    day = VirtualDay(TERMS, MARGIN, wanted=0)
    assert day.lender.loans == []
    assert day.fleet.latencies == serve_alone(day.requests, DEVICES, TERMS, UNTIL_S).latencies


class TestQueue:
    TERMS = ServingTerms(
        objective_s=1.5, window_s=10.0, utilisation=1.0, lead_s=0.0, trend_s=4.0, warm_up_s=2.0
    )

    def test_requests_wait_for_the_first_device_in_the_order_of_arrival(self):
        requests = [ServingRequest(at_s, 1.0) for at_s in (0.0, 0.25, 0.5, 2.0)]
        fleet = serve_alone(requests, 2, self.TERMS, until_s=3.0)
        # Two devices: the third request waits from 0.5 to 1.0.
        assert fleet.latencies == [(0.0, 1.0), (0.25, 1.0), (0.5, 1.5), (2.0, 1.0)]
        assert fleet.late_windows() == set(), "1.5 s are within the objective"
        one = serve_alone(requests, 1, self.TERMS, until_s=3.0)
        assert [latency_s for _, latency_s in one.latencies] == [1.0, 1.75, 2.5, 2.0]
        assert one.late_windows() == {0}

    def test_a_lent_device_serves_again_once_released_and_warm(self):
        now = [0.0]
        lender = Lender(2, margin=0, clock=lambda: now[0])
        lender.wanted(1)
        requests = [ServingRequest(at_s, 1.0) for at_s in (1.0, 1.0, 1.0, 1.0)]
        fleet = ServingFleet(requests, lender, self.TERMS)
        fleet.advance(0.0)
        assert [loan.device for loan in lender.loans] == ["gpu-0"]
        now[0] = 1.0
        fleet.advance(1.0)  # four seconds of work have arrived within two
        assert lender.offered() == [{"instance": "gpu-0", "called_back": "serving needs 2 of 2 devices"}]
        now[0] = 2.0
        lender.release("gpu-0")
        fleet.advance(2.0)
        now[0] = 3.5
        fleet.advance(3.5)
        fleet.end()
        # gpu-1 has them end at 2, 3 and 4; gpu-0, warm at 4, the last one at 5.
        assert sorted(latency_s for _, latency_s in fleet.latencies) == [1.0, 2.0, 3.0, 4.0]


class TestLoad:
    def test_it_is_least_at_the_start_of_a_day_and_greatest_in_its_middle(self):
        load = DiurnalLoad(day_s=100.0, least=1.0, most=3.0, service_s=0.1)
        assert [load.work(at_s) for at_s in (0.0, 25.0, 50.0, 100.0)] == pytest.approx([1.0, 2.0, 3.0, 1.0])

    def test_requests_bring_the_work_of_their_time(self):
        load = DiurnalLoad(day_s=100.0, least=1.0, most=3.0, service_s=0.01)
        requests = load.requests(0.0, 100.0, seed=1)
        assert statistics.mean(one.service_s for one in requests) == pytest.approx(0.01, rel=0.03)
        for begin_s, work in ((0.0, 1.0), (45.0, 3.0)):
            arrived = sum(begin_s <= one.arrived_s < begin_s + 5.0 for one in requests)
            assert arrived * 0.01 / 5.0 == pytest.approx(work, rel=0.15)
        assert requests == load.requests(0.0, 100.0, seed=1) != load.requests(0.0, 100.0, seed=2)

    def test_a_forecast_goes_on_with_a_rise_and_not_with_a_fall(self):
        for rates, expected in (((1.0, 2.0), 3.0), ((2.0, 1.0), 1.0)):
            forecast = LoadForecast(window_s=4.0)
            for second in range(4):
                forecast.add(second + 0.5, rates[second // 2])
            # The rise is half a device a second, seen from the middle of the later half: 2 + 0.5 · (1 + 1).
            assert forecast.work(4.0, ahead_s=1.0) == pytest.approx(expected)


class TestLender:
    def test_lends_idle_devices_once_the_load_has_left_room_for_a_while(self):
        now = [0.0]
        lender = Lender(4, margin=1, hold_s=5.0, clock=lambda: now[0])
        lender.wanted(4)
        assert lender.set_load(3, set(lender.devices)) == []
        now[0] = 5.0
        assert lender.set_load(1, {"gpu-1", "gpu-3"}) == [], "3 were needed five seconds ago"
        now[0] = 5.1
        assert lender.set_load(1, {"gpu-1", "gpu-3"}) == ["gpu-1", "gpu-3"], "those without a request"
        lender.set_load(2, {"gpu-0"})
        assert [loan.why for loan in lender.loans] == ["", "serving needs 2 of 4 devices"], "the newest"
        assert lender.set_load(1, {"gpu-0"}) == [], "what is called back counts until it is released"


def test_figures_of_loans_by_hand():
    loans = [
        Loan("a", 0.0, called_back_s=4.0, returned_s=6.0, why="x"),
        Loan("b", 2.5),
        Loan("c", 5.0, called_back_s=9.0, returned_s=12.0, why="x"),
        Loan("d", 5.0, called_back_s=9.5, why="x"),
    ]
    assert lent_over_time(loans, 10.0) == [1.5, 3.2]
    figures = call_figures(loans, 10.0)
    assert (figures["calls"], figures["not_released"]) == (3, 1)
    assert (figures["release_p50_s"], figures["release_p95_s"]) == (2.0, 3.0)


def test_borrowed_seconds_are_those_of_spot_devices_while_the_load_lasts():
    intervals = [
        StateInterval("spot-0", "spot", "load", 98.0, 101.0, 1.0),  # a second of it since the start at 100
        StateInterval("spot-0", "spot", "rollout", 101.0, 104.0, 1.0),
        StateInterval("spot-1", "spot", "rollout", 108.0, 113.0, 1.0),  # two seconds of it before the end
        StateInterval("reserved-0", "reserved", "rollout", 100.0, 110.0, 1.0),
    ]
    run = LendingRun(1, Counter(), intervals, began_at=100.0, lost=0, steps_redone=0)
    assert run.borrowed_s(10.0) == {"load": 1.0, "rollout": 5.0}
