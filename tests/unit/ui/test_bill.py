"""The bill, and what it would be on demand only, against figures worked by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storage import environment
from storage.environment import is_modelled
from storage.record.ledger import Entry, Ledger, Spent, bill_entries
from ui.charts.cost import market_bars, on_demand_cost
from ui.pages.convergence.charts import mean_over_seeds
from ui.pages.runs.data import shared_target, time_to_score


def ledger(*entries: Entry) -> Ledger:
    return Ledger(entries, (), (), (), has_device_events=True, samples=0, useful_samples=0)


RESERVED = Entry("iteration", "reserved", "train", Spent(3600.0, 10.0))


def test_spot_seconds_at_the_reserved_price():
    spot = [
        Entry("iteration", "spot", "rollout", Spent(5400.0, 3.0)),
        Entry("discarded", "spot", "lost", Spent(1800.0, 1.0)),
    ]
    found = on_demand_cost(ledger(RESERVED, *spot), modelled=False)
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
    assert on_demand_cost(ledger(*entries), modelled=False) is None


def test_the_bars_sum_to_the_bill_the_dearest_on_top_or_in_a_given_order():
    bill = bill_entries(
        ledger(
            RESERVED,
            Entry("iteration", "reserved", "idle", Spent(360.0, 1.0)),
            Entry("evaluation", "reserved", "rollout", Spent(720.0, 2.0)),
            Entry("evaluation", "spot", "rollout", Spent(90.0, 0.5)),
        )
    )
    assert sum(bill["usd"]) == 13.5
    bars: Any = market_bars(bill, "state", "", modelled=False).data
    reserved, spot = bars
    assert list(reserved.y) == ["idle", "rollout", "train"], "the last is on top"
    assert (list(reserved.x), list(spot.x)) == ([1.0, 2.0, 10.0], [0.0, 0.5, 0.0])
    names = {"iteration": "iterations", "evaluation": "evaluations"}
    bars = market_bars(bill, "phase", "", False, names).data
    reserved, spot = bars
    assert list(reserved.y) == ["evaluations", "iterations"]
    assert (list(reserved.x), list(reserved.customdata)) == ([2.0, 11.0], [720.0, 3960.0])
    assert list(spot.x) == [0.5, 0.0]


@pytest.mark.parametrize(
    ("settings", "environment", "modelled"),
    [
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "local"}}, {}, True),
        ({"gone": 1}, {}, True),
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "1 x NVIDIA H100"}, False),
        ({"runtime": {"cluster": "10.0.0.1:6379"}}, {"accelerators": "none"}, False),
        ({"runtime": {"cluster": "auto"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "127.0.0.1:6379"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "ray://localhost:10001"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "127.1:10001"}}, {"accelerators": "none"}, True),
        ({"runtime": {"cluster": "127.example.org:10001"}}, {"accelerators": "none"}, False),
        ({"runtime": {"cluster": "auto"}}, {"accelerators": "8 x AMD gfx90402"}, False),
        ({"runtime": {"cluster": "10.0.0.1:6379"}, "model": {"device": "cpu"}}, {}, True),
        ({"runtime": {"cluster": "10.0.0.1:6379"}}, {"devices": "cpu"}, True),
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "1 x NVIDIA H100", "devices": "cpu"}, True),
        ({"runtime": {"cluster": "ray"}}, {"accelerators": "none", "devices": "NVIDIA H100, cpu"}, False),
    ],
)
def test_dollars_are_modelled_where_no_device_was_rented(settings: dict, environment: dict, modelled: bool):
    assert is_modelled(settings, environment) is modelled


def worked_ledger(worked_s: float, idle_s: float, spot_usd_per_s: float = 0.001) -> Ledger:
    entries = (
        Entry("iteration", "reserved", "train", Spent(100.0, 0.3)),
        Entry("iteration", "spot", "rollout", Spent(worked_s, worked_s * spot_usd_per_s)),
        Entry("iteration", "spot", "idle", Spent(idle_s, idle_s * spot_usd_per_s)),
    )
    return Ledger(entries, (), (), (), True, 0, 0)


@pytest.mark.parametrize(
    ("book", "modelled", "why_not"),
    [
        (worked_ledger(60, 40), False, ""),
        (worked_ledger(40, 60), False, "Spot devices idled 60.0 s and worked 40.0 s."),
        (worked_ledger(60, 40), True, "No device was rented: processes on one machine stood in for them."),
        (worked_ledger(60, 40, 0.003), False, "The spot devices cost as much as reserved ones."),
    ],
)
def test_a_saving_is_what_reserved_devices_would_have_cost_more(book: Ledger, modelled: bool, why_not: str):
    compared = on_demand_cost(book, modelled)
    assert compared is not None and compared.no_saving == why_not
    if not why_not:
        assert compared.saved_usd == pytest.approx(100 * (0.003 - 0.001))


def test_gpus_of_amd_are_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for node, simds in enumerate((0, 304, 304)):
        folder = tmp_path / str(node)
        folder.mkdir()
        (folder / "properties").write_text(f"simd_count {simds}\ngfx_target_version 90402\n")
    monkeypatch.setattr(environment, "_AMD_NODES", tmp_path)
    assert "2 x AMD gfx90402" in environment.environment()["accelerators"]


def courses() -> pd.DataFrame:
    rows = [
        ("a", 0, 0.2, 10.0, 1.0), ("a", 10, 0.5, 110.0, 11.0), ("a", 20, 0.79, 210.0, 21.0),
        ("b", 0, 0.4, 5.0, 2.0), ("b", 10, 0.8, 55.0, 22.0),
        ("c", 0, 0.1, 1.0, 0.5),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["run_id", "iteration", "score", "elapsed_s", "usd"])


def test_time_to_a_score_goes_from_the_untouched_model_to_the_first_evaluation_at_or_above_it():
    found = time_to_score(courses(), ["b", "a", "c"], "score", 0.5).set_index("run_id")
    assert list(found.index) == ["b", "a", "c"]
    assert found["reached"].tolist() == [True, True, False]
    assert found.loc["a", ["iteration", "elapsed_s", "usd"]].tolist() == [10, 100, 10]
    assert found.loc["b", ["iteration", "elapsed_s", "usd"]].tolist() == [10, 50, 20]
    assert math.isnan(float(found["iteration"].tolist()[2]))
    assert found["best"].tolist() == [0.8, 0.79, 0.1]


def test_a_run_without_scores_has_not_reached_any():
    found = time_to_score(courses(), ["gone"], "score", 0.0)
    assert found["reached"].tolist() == [False]


def test_the_shared_target_is_the_lowest_of_the_best_scores_and_all_reach_it():
    two = courses().query("run_id != 'c'")
    assert shared_target(two, "score") == 0.79
    assert bool(time_to_score(two, ["a", "b"], "score", 0.79)["reached"].all())
    assert shared_target(courses().head(0), "score") == 0.0


def test_the_interval_over_seeds():
    rows = [("a", 0, 0.4), ("b", 0, 0.5), ("c", 0, 0.6), ("a", 10, 0.5), ("b", 10, 0.7), ("c", 20, 0.9)]
    frame = mean_over_seeds(pd.DataFrame(rows, columns=["run_id", "iteration", "score"]), "score")
    assert frame["iteration"].tolist() == [0], "the only iteration that all three have evaluated"
    # Deviation 0.1, so 4.303 * 0.1 / sqrt(3) with two degrees of freedom.
    assert frame["mean"].tolist() == pytest.approx([0.5])
    assert frame["low"].tolist() == pytest.approx([0.5 - 0.24843], abs=1e-4)
    assert frame["high"].tolist() == pytest.approx([0.5 + 0.24843], abs=1e-4)


def test_the_interval_ends_where_scores_end_and_one_run_has_none():
    rows = [("a", 0, 0.1), ("b", 0, 0.9)]
    frame = mean_over_seeds(pd.DataFrame(rows, columns=["run_id", "iteration", "score"]), "score")
    assert (frame["low"].tolist(), frame["high"].tolist()) == ([0.0], [1.0])
    one = pd.DataFrame(rows[:1], columns=["run_id", "iteration", "score"])
    assert mean_over_seeds(one, "score").empty
