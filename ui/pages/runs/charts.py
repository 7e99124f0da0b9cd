"""Charts of the page Runs: several runs side by side."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
import plotly.graph_objects as go

from storage.ledger.modelled import MODELLED
from ui.charts.layout import Axis, axis_titles, dollars, laid_out
from ui.elements.formatting import chart_text, time_unit
from ui.elements.palette import RUN_COLOURS, RUN_SYMBOLS


def comparison_chart(
    courses: pd.DataFrame,
    run_ids: list[str],
    column: str,
    title: str,
    over: Axis,
    modelled: Collection[str] = (),
) -> go.Figure:
    """Return a chart of a figure of several runs.

    Args:
        courses: frame from `score_courses` or `metric_courses` of `storage.record.queries.comparisons`.
        run_ids: runs in the order of the legend; at most as many as colours.
        column: figure to draw.
        title: name of the figure.
        over: quantity on the bottom axis.
        modelled: runs whose dollars are modelled.
    """
    longest_s = max([0.0, *courses["elapsed_s"].tolist()])
    heading, bottom = axis_titles(over, longest_s, set(run_ids) <= set(modelled))
    along = {"iteration": "iteration", "time": "elapsed_s", "usd": "usd"}[over]
    scale = time_unit(longest_s)[0] if over == "time" else 1.0
    figure = go.Figure()
    for run_id, colour, symbol in zip(run_ids, RUN_COLOURS, RUN_SYMBOLS, strict=False):
        own = courses.loc[courses["run_id"] == run_id]
        name = _named(run_id, over == "usd" and run_id in modelled)
        figure.add_scatter(
            x=own[along] / scale, y=own[column], name=name, mode="lines+markers",
            line={"color": colour, "width": 2}, marker={"size": 7, "symbol": symbol},
            hovertemplate="%{y:.4g}",
        )  # fmt: skip
    return laid_out(figure, heading, bottom, title)


def paid_chart(table: pd.DataFrame) -> go.Figure:
    """Return a chart of the cost of each run so far.

    Args:
        table: columns run_id, usd and modelled, in the order of the legend.
    """
    names = [_named(run_id, own) for run_id, own in zip(table["run_id"], table["modelled"], strict=True)]
    figure = go.Figure()
    figure.add_bar(
        y=names, x=table["usd"], orientation="h",
        marker={"color": list(RUN_COLOURS[: len(table)])}, hovertemplate="$%{x:.4g}<extra></extra>",
    )  # fmt: skip
    figure = laid_out(figure, "Cost so far", dollars(bool(table["modelled"].all())), "")
    figure.update_layout(hovermode="closest", showlegend=False)
    return figure.update_xaxes(tickprefix="$", rangemode="tozero").update_yaxes(autorange="reversed")


def _named(run_id: str, modelled: bool) -> str:
    """Return the name of a run in a legend or on an axis of dollars."""
    return f"{chart_text(run_id)} {MODELLED}" if modelled else chart_text(run_id)
