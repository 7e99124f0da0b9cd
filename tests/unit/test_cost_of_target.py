from __future__ import annotations

import json

import pytest

from benchmarks.cost_of_target import FLEETS, of_task, usd_per_hour
from benchmarks.report import RESULTS


def test_a_fleet_costs_what_its_devices_cost():
    assert usd_per_hour(FLEETS["on_demand"], "gcp/us-east4") == pytest.approx(12 * 10.98)
    assert usd_per_hour(FLEETS["mixed"], "gcp/us-east4") == pytest.approx(4 * 10.98 + 8 * 2.51)


@pytest.mark.parametrize("task", ["ocr", "shapes"])
def test_on_one_fleet_dollars_are_as_seconds(task: str):
    kept = json.loads((RESULTS / f"exploration-{task}.json").read_text())["figures"]
    figures = of_task(task)
    paid = figures["for_a_dollar_of_stale"]
    assert set(paid["stale/mixed"].values()) == {1.0}
    assert set(paid["plain/mixed"].values()) == {kept["modelled_speedup"]}
    time_plain, time_stale = (figures["modelled_s"][name] for name in ("plain/on_demand", "stale/mixed"))
    by_hand = time_plain / time_stale * (12 * 10.98) / (4 * 10.98 + 8 * 2.51)
    assert paid["plain/on_demand"]["gcp/us-east4"] == pytest.approx(by_hand, rel=5e-3)
