"""Several runs beside each other: their curves, their costs, and when each reached a score."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from ui.charts.layout import Axis, Measure, axis_titles, laid_out
from ui.elements.formatting import chart_text, time_unit

RUN_COLOURS = ("#2f80ed", "#e0793a", "#27ae7a", "#7c6fd9", "#d64550", "#2bb3c0", "#b8860b", "#9aa5b1")
"""Told apart on a light and on a dark page; as many as can be compared."""


def comparison_chart(courses: pd.DataFrame, run_ids: list[str], measure: Measure, over: Axis) -> go.Figure:
    """The held-out curves of several runs.

    Args:
        courses: as `storage.database.queries.comparisons.score_courses` gives them.
        run_ids: in the order of the legend; at most as many as there are colours.
        measure: which figure.
        over: what runs along the bottom.
    """
    longest_s = max([0.0, *courses["elapsed_s"].tolist()])
    heading, bottom = axis_titles(over, longest_s)
    column = {"iteration": "iteration", "time": "elapsed_s", "usd": "usd"}[over]
    scale = time_unit(longest_s)[0] if over == "time" else 1.0
    figure = go.Figure()
    for run_id, colour in zip(run_ids, RUN_COLOURS, strict=False):
        own = courses.loc[courses["run_id"] == run_id]
        figure.add_scatter(
            x=own[column] / scale, y=own[measure], name=chart_text(run_id), mode="lines+markers",
            line={"color": colour, "width": 2}, marker={"size": 5}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
    title = "Score (0 to 1)" if measure == "score" else "Exact matches (share)"
    return laid_out(figure, heading, bottom, title)


def paid_chart(table: pd.DataFrame) -> go.Figure:
    """What each run has cost so far.

    Args:
        table: columns run_id and usd, in the order of the legend.
    """
    figure = go.Figure()
    figure.add_bar(
        y=[chart_text(run_id) for run_id in table["run_id"]], x=table["usd"], orientation="h",
        marker={"color": list(RUN_COLOURS[: len(table)])}, hovertemplate="$%{x:.4g}<extra></extra>",
    )  # fmt: skip
    figure = laid_out(figure, "Cost so far", "US dollars", "")
    figure.update_layout(hovermode="closest", showlegend=False)
    return figure.update_xaxes(tickprefix="$", rangemode="tozero").update_yaxes(autorange="reversed")


def shared_target(courses: pd.DataFrame, measure: Measure) -> float:
    """A score that every run has reached, so that all can be compared: the lowest of their best ones.

    Rounded down to hundredths, so that rounding does not put it out of reach.
    """
    best: dict[str, float] = {}
    for run_id, value in zip(courses["run_id"].tolist(), courses[measure].tolist(), strict=True):
        best[run_id] = max(value, best.get(run_id, 0.0))
    return math.floor(100 * min(best.values()) + 1e-9) / 100 if best else 0.0


def time_to_score(courses: pd.DataFrame, run_ids: list[str], measure: Measure, target: float) -> pd.DataFrame:
    """When each run's held-out figure first reached a target.

    Returns:
        Columns run_id, reached (whether), iteration, elapsed_s, usd (NaN where not), best.
    """
    rows = []
    for run_id in run_ids:
        own = courses.loc[courses["run_id"] == run_id]
        best = float(own[measure].max()) if len(own) else math.nan
        there = own.loc[own[measure] >= target - 1e-9]
        if there.empty:
            rows.append((run_id, False, math.nan, math.nan, math.nan, best))
            continue
        first = there.iloc[0]
        row = (run_id, True, float(first["iteration"]), float(first["elapsed_s"]), float(first["usd"]), best)
        rows.append(row)
    return pd.DataFrame(rows, columns=["run_id", "reached", "iteration", "elapsed_s", "usd", "best"])
