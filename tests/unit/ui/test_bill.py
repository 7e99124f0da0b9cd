"""The bill, and what it would be on demand only, against figures worked by hand."""

from __future__ import annotations

import pytest

from storage.ledger.ledger import Entry, Ledger, Spent
from ui.charts.cost import bill_by_phase, on_demand_cost
from ui.data.devices import bill_entries


def ledger(*entries: Entry) -> Ledger:
    return Ledger(entries, (), (), (), has_device_events=True, samples=0, useful_samples=0)


RESERVED = Entry("iteration", "reserved", "train", Spent(3600.0, 10.0))


def test_spot_seconds_at_the_reserved_price():
    spot = [
        Entry("iteration", "spot", "rollout", Spent(5400.0, 3.0)),
        Entry("discarded", "spot", "lost", Spent(1800.0, 1.0)),
    ]
    found = on_demand_cost(ledger(RESERVED, *spot))
    assert found is not None
    assert found.reserved_usd_per_hour == pytest.approx(10.0)
    assert found.paid_usd == pytest.approx(14.0)
    assert found.on_demand_usd == pytest.approx(30.0), "two device-hours of spot time at 10 dollars each"
    assert found.saved_usd == pytest.approx(16.0)


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (RESERVED,),
        (Entry("iteration", "spot", "rollout", Spent(10.0, 1.0)),),
        (
            Entry("iteration", "reserved", "train", Spent(10.0, 0.0)),
            Entry("iteration", "spot", "idle", Spent(5.0, 0.0)),
        ),
    ],
)
def test_nothing_to_compare_with(entries: tuple[Entry, ...]):
    assert on_demand_cost(ledger(*entries)) is None


def test_the_bill_by_phase_sums_to_the_bill():
    book = ledger(
        RESERVED,
        Entry("iteration", "reserved", "idle", Spent(360.0, 1.0)),
        Entry("evaluation", "reserved", "rollout", Spent(720.0, 2.0)),
    )
    frame = bill_by_phase(book)
    assert frame.to_dict("records") == [
        {"phase": "iteration", "market": "reserved", "device_s": 3960.0, "usd": 11.0},
        {"phase": "evaluation", "market": "reserved", "device_s": 720.0, "usd": 2.0},
    ]
    assert sum(bill_entries(book)["usd"]) == 13.0
