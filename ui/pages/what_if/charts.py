"""Charts of the page What if: policies by time and dollars, and the mark that all its charts carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from ui.charts.layout import laid_out
from ui.elements.formatting import SIMULATED, time_unit
from ui.elements.palette import RUN_COLOURS, RUN_SYMBOLS


def policy_chart(policies: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Return a chart of dollars over time: a point per policy with its interval over the futures.

    Args:
        policies: rows of the answer, at least one.
    """
    unit_s, unit = time_unit(max(row["wall_s"]["high"] for row in policies))
    figure = go.Figure()
    for number, row in enumerate(policies):
        time, dollars = row["wall_s"], row["usd"]
        figure.add_scatter(
            x=[time["median"] / unit_s], y=[dollars["median"]], name=row["policy"], mode="markers",
            marker={
                "size": 11,
                "color": RUN_COLOURS[number % len(RUN_COLOURS)],
                "symbol": RUN_SYMBOLS[number % len(RUN_SYMBOLS)],
            },
            error_x=_interval(time, unit_s), error_y=_interval(dollars),
            hovertemplate=f"{row['policy']}: %{{x:.3g}} {unit}, $%{{y:,.4g}}<extra></extra>",
        )  # fmt: skip
    figure = laid_out(figure, "Dollars and time by policy", f"Time ({unit})", "US dollars")
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero", tickprefix="$")
    return marked(figure.update_layout(hovermode="closest"))


def marked(figure: go.Figure) -> go.Figure:
    """Return the chart with a title that says that its figures are simulated."""
    title: Any = figure.layout["title"]
    return figure.update_layout(title_text=f"{title.text} {SIMULATED}")


def _interval(spread: Mapping[str, float], unit: float = 1.0) -> dict[str, Any]:
    """Return the range from the lowest to the highest of the futures."""
    median = spread["median"]
    return {
        "type": "data", "symmetric": False, "thickness": 1,
        "array": [(spread["high"] - median) / unit], "arrayminus": [(median - spread["low"]) / unit],
    }  # fmt: skip
