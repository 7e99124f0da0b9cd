"""The plots: score over iterations and over time, cost, and what paid time went into."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ui.data.run import RunView
from ui.elements.formatting import time_unit
from ui.pages.cost.data import OnDemandCost

# Colours that hold on a light and on a dark page.
SCORE_COLOUR = "#2f80ed"
TRAINING_COLOUR = "#9aa5b1"
BASELINE_COLOUR = "#e0793a"
MARKET_COLOURS = {"reserved": "#7c6fd9", "spot": "#27ae7a"}
DRAFT_COLOUR = "#7c6fd9"
OVERLAP_COLOUR = "#27ae7a"

PHASE_NAMES = {"iteration": "iterations", "evaluation": "evaluations", "discarded": "thrown away"}
"""Phases of the bill, as people call them, in the order of a chart."""

_HEIGHT_PX = 340


Measure = Literal["score", "exact"]
"""The graded score, or the share of exact matches."""

Axis = Literal["iteration", "time", "usd"]
"""What runs along the bottom: iterations, time at work, or dollars paid."""

PLOT_SETTINGS = {
    "displaylogo": False,
    "modeBarButtons": [["toImage"]],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "spotlight"},
}
"""For `st.plotly_chart`: one button, seen under the mouse, which saves the plot as PNG."""


def score_chart(view: RunView, measure: Measure, over: Axis) -> go.Figure:
    """Held-out results (bold), training's own (thin) and the level before training (dashed).

    Args:
        measure: which figure.
        over: what runs along the bottom.
    """
    heading, bottom = axis_titles(over, view.elapsed_s)
    training = "reward_mean" if measure == "score" else "exact_share"
    figure = go.Figure()
    if training in view.metrics:
        figure.add_scatter(
            x=_along(view, view.metrics, over), y=view.metrics[training], name="training samples, mean",
            mode="lines", line={"color": TRAINING_COLOUR, "width": 1.2}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
    figure.add_scatter(
        x=_along(view, view.scores, over), y=view.scores[measure], name="held-out prompts",
        mode="lines+markers", line={"color": SCORE_COLOUR, "width": 3}, marker={"size": 8},
        hovertemplate="%{y:.3f}",
    )  # fmt: skip
    if not view.scores.empty:
        before = float(view.scores[measure].iloc[0])
        figure.add_hline(
            y=before, line={"color": BASELINE_COLOUR, "width": 1.5, "dash": "dash"},
            annotation={"text": f"before training {before:.2f}", "font": {"color": BASELINE_COLOUR}},
            annotation_position="bottom right",
        )  # fmt: skip
    title = "Score (0 to 1)" if measure == "score" else "Exact matches (share)"
    return laid_out(figure, heading, bottom, title)


def axis_titles(over: Axis, longest_s: float) -> tuple[str, str]:
    """A chart's title and that of its bottom axis, with the unit."""
    if over == "iteration":
        return "Over iterations", "Iteration"
    if over == "usd":
        return "Over cost", "US dollars paid"
    return "Over wall-clock", f"Wall-clock ({time_unit(longest_s)[1]})"


def _along(view: RunView, frame: pd.DataFrame, over: Axis) -> np.ndarray:
    if over == "time":
        return frame["elapsed_s"].to_numpy() / time_unit(view.elapsed_s)[0]
    iterations = frame["iteration"].to_numpy()
    return view.usd_at(iterations) if over == "usd" else iterations


def cost_chart(view: RunView) -> go.Figure:
    """Dollars paid up to each iteration, spot on top of reserved."""
    figure = go.Figure()
    for market, colour in MARKET_COLOURS.items():
        figure.add_scatter(
            x=view.cost["iteration"], y=view.cost[f"{market}_usd"], name=market, mode="lines",
            stackgroup="markets", line={"color": colour, "width": 1.5}, hovertemplate="$%{y:.4g}",
        )  # fmt: skip
    figure = laid_out(figure, "Cost so far, by market", "Iteration", "US dollars")
    return figure.update_yaxes(rangemode="tozero", tickprefix="$")


def state_chart(view: RunView) -> go.Figure:
    """What the paid device time went into, dearest first."""
    figure = go.Figure()
    frame = view.cost_by_state
    order = list(dict.fromkeys(frame["state"]))[::-1]  # plotly draws the first bar at the bottom
    for market, colour in MARKET_COLOURS.items():
        part = frame[frame["market"] == market].set_index("state")[["usd", "device_s"]]
        part = part.reindex(order, fill_value=0.0)
        figure.add_bar(
            y=order, x=part["usd"], name=market, orientation="h", marker={"color": colour},
            customdata=part["device_s"], hovertemplate="$%{x:.4g}, %{customdata:.0f} device-seconds",
        )  # fmt: skip
    figure = laid_out(figure, "What was paid for", "US dollars", "")
    return figure.update_layout(barmode="stack", hovermode="closest").update_xaxes(tickprefix="$")


def laid_out(figure: go.Figure, title: str, bottom: str, left: str) -> go.Figure:
    """The figure with its titles, in the measures that all plots share."""
    return figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        xaxis_title=bottom,
        yaxis_title=left,
        height=_HEIGHT_PX,
        margin={"l": 10, "r": 10, "t": 64, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="x unified",
    )


def phase_chart(frame: pd.DataFrame) -> go.Figure:
    """What iterations, evaluations and thrown-away work cost, by market.

    Args:
        frame: columns phase, market, device_s, usd; at least one row.
    """
    figure = go.Figure()
    order = [phase for phase in PHASE_NAMES if phase in set(frame["phase"])][::-1]
    for market, colour in MARKET_COLOURS.items():
        part = frame[frame["market"] == market].set_index("phase")[["usd", "device_s"]]
        part = part.reindex(order, fill_value=0.0)
        figure.add_bar(
            y=[PHASE_NAMES[phase] for phase in order], x=part["usd"], name=market, orientation="h",
            marker={"color": colour}, customdata=part["device_s"],
            hovertemplate="$%{x:.4g}, %{customdata:.0f} device-seconds",
        )  # fmt: skip
    figure = laid_out(figure, "By phase and market", "US dollars", "")
    return figure.update_layout(barmode="stack", hovermode="closest").update_xaxes(tickprefix="$")


def on_demand_chart(cost: OnDemandCost) -> go.Figure:
    """The bill as it is beside what it would have been with every device at the reserved price."""
    figure = go.Figure()
    bars = {
        "reserved": [cost.reserved_usd, cost.reserved_usd],
        "spot": [cost.spot_usd, 0.0],
        "spot, at the reserved price": [0.0, cost.spot_as_reserved_usd],
    }
    colours = {**MARKET_COLOURS, "spot, at the reserved price": BASELINE_COLOUR}
    for name, amounts in bars.items():
        figure.add_bar(
            y=["as it was", "on demand only"], x=amounts, name=name, orientation="h",
            marker={"color": colours[name]}, hovertemplate="$%{x:.4g}",
        )  # fmt: skip
    figure = laid_out(figure, "The bill, and on demand only", "US dollars", "")
    figure.update_layout(barmode="stack", hovermode="closest")
    return figure.update_xaxes(tickprefix="$").update_yaxes(autorange="reversed")
