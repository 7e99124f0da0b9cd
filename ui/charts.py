"""The plots: score over iterations and over time, cost, and what paid time went into."""

from __future__ import annotations

from typing import Literal

import plotly.graph_objects as go

from ui.formatting import time_unit
from ui.run_view import RunView

# Colours that hold on a light and on a dark page.
SCORE_COLOUR = "#2f80ed"
TRAINING_COLOUR = "#9aa5b1"
BASELINE_COLOUR = "#e0793a"
MARKET_COLOURS = {"reserved": "#7c6fd9", "spot": "#27ae7a"}
DRAFT_COLOUR = "#7c6fd9"
OVERLAP_COLOUR = "#27ae7a"

_HEIGHT_PX = 340


Measure = Literal["score", "exact"]
"""The graded score, or the share of exact matches."""

PLOT_SETTINGS = {"displayModeBar": False}
"""For `st.plotly_chart`: no tool bar over the titles; zoom and hover work without."""


def score_chart(view: RunView, measure: Measure, over: Literal["iteration", "time"]) -> go.Figure:
    """Held-out results (bold), training's own (thin) and the level before training (dashed).

    Args:
        measure: which figure.
        over: what runs along the bottom: iterations, or time at work.
    """
    unit_s, unit = time_unit(view.elapsed_s)
    column, scale = ("iteration", 1.0) if over == "iteration" else ("elapsed_s", unit_s)
    bottom = "Iteration" if over == "iteration" else f"Wall-clock ({unit})"
    training = "reward_mean" if measure == "score" else "exact_share"
    figure = go.Figure()
    if training in view.metrics:
        figure.add_scatter(
            x=view.metrics[column] / scale, y=view.metrics[training], name="training samples, mean",
            mode="lines", line={"color": TRAINING_COLOUR, "width": 1.2}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
    figure.add_scatter(
        x=view.scores[column] / scale, y=view.scores[measure], name="held-out prompts", mode="lines+markers",
        line={"color": SCORE_COLOUR, "width": 3}, marker={"size": 8}, hovertemplate="%{y:.3f}",
    )  # fmt: skip
    if not view.scores.empty:
        before = float(view.scores[measure].iloc[0])
        figure.add_hline(
            y=before, line={"color": BASELINE_COLOUR, "width": 1.5, "dash": "dash"},
            annotation={"text": f"before training {before:.2f}", "font": {"color": BASELINE_COLOUR}},
            annotation_position="bottom right",
        )  # fmt: skip
    title = "Score (0 to 1)" if measure == "score" else "Exact matches (share)"
    heading = "Over iterations" if over == "iteration" else "Over wall-clock"
    return laid_out(figure, heading, bottom, title)


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
