"""A live run on its pages: phase, time left, log; why one ended; metrics of one's choice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from storage.config.run_config import RunConfig
from storage.record.run_folder import EVENTS_FILE
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from tests.dashboard_page import figures, opened_page, ran, read_anew
from tests.sample_run import evaluation_record, iteration_record
from ui.charts.layout import Axis
from ui.data.run import read_run
from ui.elements.run_page import seconds_left
from ui.pages.convergence.charts import metric_chart, smoothed

pytestmark = pytest.mark.xdist_group("recorded")


@pytest.fixture
def live(store: RunStore) -> Iterator[RunStore]:
    """A run of 40 planned iterations that has done ten; the last one ended just now."""
    store.create_run("live", RunConfig(iterations=40), {}, os.getpid())
    begin = time.time() - 10 * 18
    store.commit_evaluation(evaluation_record("live", 0, begin - 9, images=4, gallery=0))
    for iteration in range(1, 11):
        store.commit_iteration(iteration_record("live", iteration, begin + 18 * (iteration - 1), samples=32))
    log = RunLog(store.home, "live")
    log.starting()
    log.ready()
    log.note("iteration 10 of 40: reward 0.512, 18.0 s")
    with log.phase("train"), log.phase("explore"):
        yield store


def progress(page: AppTest) -> str:
    [bar] = page.get("progress")
    return bar.proto.text


@pytest.mark.parametrize("name", ["convergence", "spot"])
def test_a_live_run_says_what_it_does_and_when_it_is_done(live: RunStore, name: str):
    page = opened_page(name)
    text = progress(page)
    assert text.startswith("Iteration 10 of 40 · training for ")
    assert "exploring for " in text
    assert text.endswith("min left")
    log = next(code.value for code in page.code if "iteration 10 of 40" in code.value)
    assert log.splitlines()[-1].endswith("explore begins")
    live.set_status("live", "finished")
    read_anew()
    assert not ran(page).get("progress")


def test_the_time_left_is_that_of_the_recent_iterations(live: RunStore):
    view = read_run(live, "live")
    ended_at = float(view.metrics["ended_at"].iloc[-1])
    assert seconds_left(view, ended_at) == pytest.approx(30 * 18, rel=1e-3)
    assert seconds_left(view, ended_at + 10) == pytest.approx(30 * 18 - 10, rel=1e-3)
    assert seconds_left(view, ended_at + 1e6) == pytest.approx(29 * 18, rel=1e-3), "resumed after a break"


def test_metrics_are_chosen_smoothed_and_put_on_an_axis(live: RunStore):
    page = opened_page("convergence")
    before = len(page.get("plotly_chart"))
    assert "gradient_norm" in page.multiselect("metrics").options
    page.multiselect("metrics").set_value(["gradient_norm", "loss"]).run()
    charts = [str(chart.proto) for chart in page.get("plotly_chart")]
    assert len(charts) == before + 2
    assert not any("smoothed by" in chart for chart in charts)
    page.slider("metrics_smoothing").set_value(0.5).run()
    assert sum("smoothed by 0.5" in str(chart.proto) for chart in page.get("plotly_chart")) == 2
    page.segmented_control("metrics_axis").select("Dollars").run()
    assert not page.exception
    assert any("US dollars (modelled)" in str(chart.proto) for chart in page.get("plotly_chart"))


def test_a_metric_s_axes(live: RunStore):
    view = read_run(live, "live")

    def along(over: Axis) -> list[float]:
        figure: Any = metric_chart(view, "loss", 0.0, over)
        return list(figure.data[0].x)

    assert along("iteration") == list(range(1, 11))
    assert along("time")[-1] == pytest.approx((9 + 180) / 60)
    assert along("usd")[-1] == pytest.approx(189 * (10.98 + 2 * 2.51) / 3600)


def test_a_smoothed_course_begins_without_a_bias_and_keeps_gaps():
    course = smoothed(np.array([1.0, 3.0, np.nan, 3.0]), 0.5)
    # (3 + 0.5 * 1) / 1.5, then (3 + 0.5 * 3 + 0.25 * 1) / 1.75
    assert course[[0, 1, 3]] == pytest.approx([1.0, 3.5 / 1.5, 4.75 / 1.75])
    assert np.isnan(course[2])
    assert smoothed(np.array([1.0, 3.0]), 0.0) == pytest.approx([1.0, 3.0])


def test_a_run_without_a_log_is_shown_too(live: RunStore):
    (live.home.run("live") / EVENTS_FILE).unlink()
    read_anew()
    page = ran(opened_page("convergence"))
    assert progress(page).startswith("Iteration 10 of 40 · about ")
    assert figures(page)["Iterations"] == "10 of 40"
