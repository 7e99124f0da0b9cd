"""The charts of a run of which the first evaluation and the first iteration are recorded: one point each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from storage.evaluations.quality import JUDGE, PART
from storage.home import Home
from storage.record.queries import comparisons
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run
from ui.charts.cost import cost_chart
from ui.charts.layout import Axis, Measure
from ui.data.images import QualityView, read_quality
from ui.data.run import RunView, read_run
from ui.pages.convergence.charts import (
    interval_chart,
    learning_charts,
    metric_chart,
    part_charts,
    quality_charts,
    score_chart,
)
from ui.pages.runs.data import comparison_chart
from ui.pages.seeds.charts import spread_chart

AXES: tuple[Axis, ...] = ("iteration", "time", "usd")
MEASURES: tuple[Measure, ...] = ("score", "exact")


def finite(values: Any) -> list[float]:
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def check(figure: Any) -> None:
    """Each trace of one point has a marker, and axes are fitted to what a figure can be."""
    title = figure.layout.title.text
    assert all(note.text for note in figure.layout.annotations), (title, "plotly.js writes `new text`")
    for trace in figure.data:
        points = min(len(finite(trace.x)), len(finite(trace.y)))
        assert points != 1 or "markers" in trace.mode, title
    for name in "xy":
        axis = figure.layout[f"{name}axis"]
        values = {value for trace in figure.data for value in finite(trace[name])}
        whole = str(axis.tickformat or "").endswith(".0%")
        assert not whole or axis.range is not None, (title, name, "whole percents repeat on a narrow axis")
        if min(values) < 0:
            continue
        assert axis.range is not None or axis.rangemode in ("nonnegative", "tozero"), (title, name)
        if axis.range is not None:
            assert axis.range[0] == 0, (title, name)
            assert max(values) < axis.range[1] <= max(1, 1.7 * max(values)), (title, name)


@pytest.fixture(params=[0, 1])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RunView, QualityView, pd.DataFrame]:
    """A run with its evaluation before training, and none or one iteration after it."""
    store = RunStore(Home(tmp_path))
    write_sample_run(store, "r", iterations=request.param)
    with store.reading() as connection:
        courses = comparisons.score_courses(connection, ["r"])
        quality = read_quality(connection, "r")
    parts = quality.means.assign(**{f"{PART}style": 0.3})
    return read_run(store, "r"), QualityView(parts, quality.verdict), courses


def test_a_chart_of_one_point_shows_it_on_fitting_axes(
    recorded: tuple[RunView, QualityView, pd.DataFrame],
):
    view, quality, courses = recorded
    judges = pd.DataFrame({"iteration": [0], JUDGE: [0.25]})
    charts: list[go.Figure] = [cost_chart(view), *quality_charts(quality), *part_charts(view, quality)]
    charts += [score_chart(view, measure, over, judges) for measure in MEASURES for over in AXES]
    charts += [
        comparison_chart(courses, ["r"], measure, measure, over) for measure in MEASURES for over in AXES
    ]
    charts += [interval_chart(courses, {3: "r"}, measure) for measure in MEASURES]
    if len(view.metrics):
        view.metrics["spread_kept"] = 0.1
        charts += [*learning_charts(view), spread_chart(view)]
        charts += [
            metric_chart(view, name, smoothing, over)
            for name in ("gradient_norm", "loss", "iteration_s")
            for smoothing in (0.0, 0.5)
            for over in AXES
        ]
    for chart in charts:
        check(chart)


def test_an_objective_without_a_ratio_has_no_charts_of_one(tmp_path: Path):
    store = RunStore(Home(tmp_path))
    drawn = {}
    for objective in ("grpo", "nft"):
        write_sample_run(store, objective, iterations=3, objective=objective)
        charts: list[Any] = learning_charts(read_run(store, objective))
        drawn[objective] = {chart.layout.title.text for chart in charts}
    assert drawn["grpo"] - drawn["nft"] == {"Ratio deviation at the first update", "Clipped denoising steps"}
    assert drawn["nft"] < drawn["grpo"]


def test_only_an_objective_on_pairs_has_charts_of_them(tmp_path: Path):
    store = RunStore(Home(tmp_path))
    write_sample_run(store, "r", iterations=3)
    view = read_run(store, "r")
    drawn: list[set[str]] = []
    for _ in range(2):
        charts: list[Any] = learning_charts(view)
        drawn.append({chart.layout.title.text for chart in charts})
        view.metrics["pair_accuracy"], view.metrics["pair_margin"] = [0.5, 0.6, 0.7], [0.0, -0.1, 0.2]
    assert drawn[1] - drawn[0] == {"Pairs ordered as the reward does", "Margin of the better image"}


def test_a_single_negative_value_has_an_axis_below_zero(tmp_path: Path):
    store = RunStore(Home(tmp_path))
    write_sample_run(store, "r", iterations=1)
    view = read_run(store, "r")
    view.metrics["loss"] = -1e-4
    figure: Any = metric_chart(view, "loss", 0.0, "iteration")
    assert list(figure.layout.yaxis.range) == pytest.approx([-1.6e-4, 0.0])
