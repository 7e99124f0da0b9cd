"""The page of the spot devices as a person meets it: without runs, live, finished, with losses and gaps."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from storage.config.run_config import RunConfig
from storage.record.queries import devices as device_queries
from storage.record.records import GroupRecord, StandbyTime, StateInterval, StepTimeRecord
from storage.record.run_store import RunStore
from tests.dashboard_page import captions, figures, opened_page, ran, read_anew, sentences
from tests.sample_run import iteration_record, write_sample_run
from tests.sample_spot import exploring, with_joined, with_loss, write_spot_run
from ui.charts import devices as device_charts

START = 1.7e9


def begun(store: RunStore, run_id: str = "r") -> RunStore:
    store.create_run(run_id, RunConfig(), {}, os.getpid())
    return store


def below(page: AppTest, label: str) -> str:
    return next(metric.delta for metric in page.metric if metric.label.partition(" :")[0] == label)


def charts(page: AppTest) -> dict[str, str]:
    known = ("What every device did", "Use of spot", "Use of reserved", "Which devices shared images")
    texts = [str(chart.proto) for chart in page.get("plotly_chart")]
    return {next(title for title in known if title in text): text for text in texts}


def gantt(page: AppTest) -> str:
    return charts(page)["What every device did"]


def test_a_finished_run_that_explored(store: RunStore):
    write_spot_run(begun(store), "r", iterations=6, start=START, lost_in=5)
    store.set_status("r", "finished")
    page = opened_page("spot")
    # Spot: 2 x 6 x 18 s, less 2 s without spot-1. Of that, 2 s of each iteration are idle and 6 s exploring,
    # but none of spot-1's fifth: 22 s and 66 s of 214 s.
    assert (
        "**Spot devices were idle for 10 % of their paid time; without exploration it would be 41 %.**"
        in sentences(page)
    )
    assert not page.error
    shown = figures(page)
    assert shown["Spot idle"] == "10 %"
    assert below(page, "Spot idle") == "41 % without exploring"
    assert shown["Paid device time"] == "5.4 min"
    assert shown["Devices lost"] == "1"
    assert below(page, "Devices lost") == "cut at most 5.0 s"
    assert shown["Discarded work"] == "0.0 s"
    assert shown["Goodput"] == "0.596/s"
    assert shown["Unaccounted"] == "0 %"
    assert list(charts(page)) == ["What every device did", "Use of spot", "Use of reserved"]
    assert all(f"end of {iteration}" in gantt(page) for iteration in (4, 5, 6))
    assert "end of 3" not in gantt(page)
    assert "device lost" in gantt(page)
    assert "its process is gone" in gantt(page)
    losses: pd.DataFrame = page.dataframe[0].value
    assert losses[["device", "iteration", "cut", "for (s)"]].to_numpy().tolist() == [
        ["spot-1", 5, "rollout", 5]
    ]
    workers: pd.DataFrame = page.dataframe[2].value
    assert workers["worker"].tolist() == ["reserved-0", "spot-0", "spot-1", "spot-1.1"]
    assert workers["unaccounted"].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-6)


def test_decisions_standbys_and_groups_have_tables_and_a_chart_where_there_are_any(store: RunStore):
    begun(store)
    store.commit_iteration(iteration_record("r", 1, START))
    assert not {"Devices rented", "Which devices shared images"} & {
        part.value for part in opened_page("spot").subheader
    }
    store.add_event("r", "resumed", "another event")
    reasons = ["nothing has been measured yet", "1 spot device instead of 3: the last 2 save nothing"]
    for reason in reasons:
        store.add_event("r", "capacity", reason)
    times = [StandbyTime("standby-0", 40.0, 11.0, 2**29, "taken"), StandbyTime("standby-1", 9.0, 8.0, 2**28)]
    groups = [
        GroupRecord(1, 0, "", ("reserved-0", "spot-0"), START + 18, START + 22),
        GroupRecord(2, 0, "", ("reserved-0",), START + 22.2, START + 26),
    ]
    record = iteration_record("r", 2, START + 18, samples=32)
    store.commit_iteration(dataclasses.replace(record, standby_time=times, groups=groups))
    read_anew()
    page = opened_page("spot")
    decisions = next(frame.value for frame in page.dataframe if "decision" in frame.value.columns)
    assert decisions["decision"].tolist() == reasons[::-1]
    accounts: pd.DataFrame = page.dataframe[-1].value
    assert accounts.to_numpy().tolist() == [
        ["standby-0", 40.0, 11.0, 512.0, 1, 0], ["standby-1", 9.0, 8.0, 256.0, 0, 0],
    ]  # fmt: skip
    assert "hold no device" in captions(page) and "share all its images" in captions(page)
    drawn = charts(page)["Which devices shared images"]
    assert "2 together" in drawn and "alone" in drawn and "reserved-0, spot-0" in drawn


def test_the_iterations_of_the_time_line_can_be_chosen(store: RunStore):
    write_spot_run(begun(store), "r", iterations=6, start=START, lost_in=2)
    page = opened_page("spot")
    assert "device lost" not in gantt(page)
    page.segmented_control[0].select("A range")
    ran(page)
    assert page.slider[0].value == (4, 6)
    page.slider[0].set_value((1, 2))
    ran(page)
    assert "device lost" in gantt(page)
    assert "end of 2" in gantt(page)
    assert "end of 3" not in gantt(page)
    page.slider[0].set_value((20, 30))
    ran(page)
    assert "Nothing is recorded for these iterations" in captions(page)
    assert "Use of spot" in charts(page)


def test_a_run_without_spot_workers(store: RunStore):
    begun(store)
    record = iteration_record("r", 1, START)
    own = [interval for interval in record.intervals if interval.market == "reserved"]
    store.commit_iteration(with_joined(dataclasses.replace(record, intervals=own)))
    page = opened_page("spot")
    assert "No spot worker in this run" in sentences(page)
    assert any("runtime.spot_workers=2" in code.value for code in page.code)
    assert figures(page)["Spot idle"] == "-"
    assert "Use of spot" not in charts(page)
    assert "Use of reserved" in charts(page)
    assert "No device was lost" in captions(page)


def test_a_run_that_does_not_explore(store: RunStore):
    write_sample_run(store, iterations=4)
    page = opened_page("spot")
    # Idle: 8 of the 18 s of an iteration, 1 of the 9 s of the evaluation.
    assert f"Spot devices were idle for {100 * (4 * 8 + 1) / (4 * 18 + 9):.0f} %" in sentences(page)
    assert "exploration.strategy=auto" in sentences(page)
    assert figures(page)["Devices lost"] == "-", "the sample run records no devices"
    assert "did not record losses here" in captions(page)


def test_states_that_do_not_sum_to_the_bill(store: RunStore):
    begun(store)
    record = with_joined(iteration_record("r", 1, START))
    missing = record.intervals[1]
    assert (missing.worker, missing.state) == ("reserved-0", "rollout")
    double = StateInterval("spot-0", "spot", "explore", START + 2, START + 5, 2.5)
    others = [interval for interval in record.intervals if interval is not missing]
    store.commit_iteration(dataclasses.replace(record, intervals=[*others, double]))
    page = opened_page("spot")
    text = page.error[0].value
    assert "do not sum to the bill" in text
    assert "the states differ from the paid device time by 17 % (at most 0.1 % is allowed)" in text
    assert "most for reserved-0: 9.0 s less" in text
    assert "1 times a worker was in two states at once, first spot-0 in iteration 1 (explore, 3.0 s)" in text
    assert figures(page)["Unaccounted"] == "17 %"


def test_work_that_a_resume_did_again_is_shown_without_the_break(store: RunStore):
    begun(store)
    for iteration in (1, 2):
        record = exploring(iteration_record("r", iteration, START + 18 * (iteration - 1)))
        store.commit_iteration(with_joined(record) if iteration == 1 else record)
    store.discard_after("r", 1)
    store.commit_iteration(with_joined(exploring(iteration_record("r", 2, START + 9000))))
    page = opened_page("spot")
    assert figures(page)["Discarded work"] == "54.0 s"
    assert not page.error, "a break is not paid for"
    assert "discarded" in gantt(page)
    assert "dash" in gantt(page)
    assert "Time at work (s)" in gantt(page), "54 s a device, not hours"


def test_a_long_time_line_is_cut_and_iterations_share_bars(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_charts, "MOST_INTERVALS", 20)
    monkeypatch.setattr(device_charts, "MOST_BARS", 2)
    write_spot_run(begun(store), "r", iterations=4, start=START, lost_in=9)
    page = opened_page("spot")
    assert "The latest 20 of 36 intervals" in captions(page)
    assert "Each bar is 2 iterations" in captions(page)
    assert "end of 4" in gantt(page)


def test_the_bill_and_the_use_are_of_one_moment(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    write_spot_run(begun(store), "r", iterations=1, start=START, lost_in=9)
    read, found = device_queries.utilisation, list[pd.DataFrame]()

    def after_a_commit(*arguments: Any) -> pd.DataFrame:
        store.commit_iteration(exploring(iteration_record("r", 2, START + 18)))
        found.append(read(*arguments))
        return found[-1]

    monkeypatch.setattr(device_queries, "utilisation", after_a_commit)
    page = opened_page("spot")
    assert figures(page)["Paid device time"] == "54.0 s"
    [use] = found
    assert use["last"].unique().tolist() == [1]


def test_the_degree_that_measured_times_have_chosen(store: RunStore):
    begun(store)
    record = iteration_record("r", 1, START, samples=32)
    tried = [StepTimeRecord("64x64, 4 at a time", degree, s, 3) for degree, s in ((1, 1.0), (2, 0.4))]
    both = GroupRecord(2, 0, "", ("reserved-0", "spot-0"), START + 1, START + 9)
    alone = [GroupRecord(1, n, "", (name,), START, START + 1) for n, name in enumerate(both.members)]
    store.commit_iteration(dataclasses.replace(record, groups=[*alone, both], step_times=tried))
    later = [StepTimeRecord("64x64, 4 at a time", 2, 0.5, 7)]
    record = iteration_record("r", 2, START + 18, samples=32)
    store.commit_iteration(dataclasses.replace(record, groups=[both], step_times=later))
    page = opened_page("spot")
    said = "\n".join(block.value for block in page.markdown)
    assert "2 devices share an image" in said and "94 % of these iterations" in said  # 32 of 34 s
    times: pd.DataFrame = page.dataframe[0].value
    assert times["a denoising step (s)"].tolist() == [1.0, 0.5]
    assert times["steps a device-second"].tolist() == [1.0, 1.0]
    assert times["chunks timed"].tolist() == [3, 10]
    store.discard_after("r", 1)
    read_anew()
    times = ran(page).dataframe[0].value
    assert times["a denoising step (s)"].tolist() == [1.0, 0.4], "what is done again is measured again"


def test_hostile_text(store: RunStore):
    begun(store)
    store.commit_iteration(with_loss(iteration_record("r", 1, START), 6.0, "<script>alert(1)</script>"))
    assert "<script>" not in gantt(opened_page("spot"))
