"""Charts of the bill for several pages: dollars over the iterations, and paid device time by use."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from ui.charts.layout import dollars, laid_out
from ui.data.run import RunView
from ui.elements.palette import MARKET_COLOURS


def cost_chart(view: RunView) -> go.Figure:
    """Return a chart of the dollars paid up to each iteration, spot on top of reserved."""
    figure = go.Figure()
    for market, colour in MARKET_COLOURS.items():
        figure.add_scatter(
            x=view.cost["iteration"], y=view.cost[f"{market}_usd"], name=market, mode="lines",
            stackgroup="markets", line={"color": colour, "width": 1.5}, hovertemplate="$%{y:.4g}",
        )  # fmt: skip
    figure = laid_out(figure, "Cost so far, by market", "Iteration", dollars(view.is_modelled))
    return figure.update_yaxes(rangemode="tozero", tickprefix="$")


def state_chart(view: RunView) -> go.Figure:
    """Return a chart of the paid device time by state, the most expensive state first."""
    frame = view.cost_by_state
    states = {state: state for state in dict.fromkeys(frame["state"])}
    return market_bars(frame, "state", states, "What was paid for", view.is_modelled)


def market_bars(
    frame: pd.DataFrame, column: str, names: Mapping[str, str], title: str, modelled: bool
) -> go.Figure:
    """Return a chart of dollars by market, with a bar for each value of a column.

    Args:
        frame: columns market, device_s, usd and `column`.
        column: column that the bars stand for, such as `state`.
        names: the column's values in the order of the bars, with their names in the chart.
        title: title of the chart.
        modelled: True if the dollars are modelled.
    """
    figure = go.Figure()
    order = list(names)[::-1]  # plotly draws the first bar at the bottom
    for market, colour in MARKET_COLOURS.items():
        part = frame[frame["market"] == market].set_index(column)[["usd", "device_s"]]
        part = part.reindex(order, fill_value=0.0)
        figure.add_bar(
            y=[names[value] for value in order], x=part["usd"], name=market, orientation="h",
            marker={"color": colour}, customdata=part["device_s"],
            hovertemplate="$%{x:.4g}, %{customdata:.0f} device-seconds",
        )  # fmt: skip
    figure = laid_out(figure, title, dollars(modelled), "")
    return figure.update_layout(barmode="stack", hovermode="closest").update_xaxes(tickprefix="$")
