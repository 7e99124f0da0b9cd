"""What all charts share: colours, axes, layout."""

from __future__ import annotations

from typing import Literal

import plotly.graph_objects as go

from ui.elements.formatting import time_unit

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

Axis = Literal["iteration", "time", "usd"]
"""What runs along the bottom: iterations, time at work, or dollars paid."""

PLOT_SETTINGS = {
    "displaylogo": False,
    "modeBarButtons": [["toImage"]],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "spotlight"},
}
"""For `st.plotly_chart`: one button, which saves the plot as PNG."""


def axis_titles(over: Axis, longest_s: float) -> tuple[str, str]:
    """The title of a chart and that of its bottom axis, with the unit.

    Args:
        over: what runs along the bottom.
        longest_s: where a time axis ends, in seconds.
    """
    if over == "iteration":
        return "Over iterations", "Iteration"
    if over == "usd":
        return "Over cost", "US dollars paid"
    return "Over wall-clock", f"Wall-clock ({time_unit(longest_s)[1]})"


def laid_out(figure: go.Figure, title: str, bottom: str, left: str) -> go.Figure:
    """The figure with its titles, in the size that all charts share.

    Args:
        figure: what is drawn.
        title: of the chart.
        bottom: title of the bottom axis.
        left: title of the left axis.
    """
    return figure.update_layout(
        title={"text": title, "font": {"size": 15}},
        xaxis_title=bottom,
        yaxis_title=left,
        height=_HEIGHT_PX,
        margin={"l": 10, "r": 10, "t": 64, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="x unified",
    )


def add_level(figure: go.Figure, level: float, text: str = "") -> None:
    """Add a dashed line at a level: a limit, or where training began.

    Args:
        figure: where to.
        level: on the left axis.
        text: what the level is; empty for no text.
    """
    note = {"text": text, "font": {"color": BASELINE_COLOUR}} if text else None
    figure.add_hline(
        y=level, line={"color": BASELINE_COLOUR, "width": 1.5, "dash": "dash"}, annotation=note,
        annotation_position="bottom right" if text else None,
    )  # fmt: skip


def measure_title(measure: Measure) -> str:
    """The title of the axis of a measure."""
    return "Score (0 to 1)" if measure == "score" else "Exact matches (share)"
