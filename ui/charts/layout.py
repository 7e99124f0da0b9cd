"""The axes and the layout that all charts share."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from storage.environment import MODELLED
from ui.elements.formatting import time_unit
from ui.elements.palette import REFERENCE_COLOUR

_HEIGHT_PX = 340
_ROOM = 1.6  # factor from a single value to the end of its axis, which begins at 0
_EMPTY = "Nothing is recorded yet."

Measure = Literal["score", "exact"]  # graded score, or the share of exact matches

MEASURE_TITLES: dict[Measure, str] = {"score": "Score (0 to 1)", "exact": "Exact matches (share)"}
"""The title of the axis of a measure."""

Axis = Literal["iteration", "time", "usd"]
"""The quantity on the bottom axis: iterations, time at work, or dollars paid."""

AXES: dict[str, Axis] = {"Iterations": "iteration", "Time": "time", "Dollars": "usd"}
"""The same by their names in a switch."""


def dollars(modelled: bool) -> str:
    """Return the title of an axis of dollars."""
    return f"US dollars {MODELLED}" if modelled else "US dollars"


def axis_titles(over: Axis, longest_s: float, modelled: bool = False) -> tuple[str, str]:
    """Return the title of a chart and that of its bottom axis, with the unit.

    Args:
        longest_s: end of a time axis, in seconds.
    """
    if over == "iteration":
        return "Over iterations", "Iteration"
    if over == "usd":
        return "Over cost", dollars(modelled) if modelled else "US dollars paid"
    return "Over time at work", f"Time at work ({time_unit(longest_s)[1]})"


def laid_out(figure: go.Figure, title: str, bottom: str, left: str, **own: Any) -> go.Figure:
    """Return the figure in the common layout, with its titles; a sentence replaces missing points.

    The title is at the top and the legend at the bottom at any width: a legend of many rows takes space from
    the plot, not from the title.

    Args:
        figure: figure with all its traces; `bottom` and `left` are titles of its axes.
        own: more properties of the layout (`yaxis_range=`), which override the common ones.
    """
    _fit_first_points(figure)
    traces: Any = figure.data  # plotly's types lack their x and y
    has_points = any(
        all(pd.Series(values, dtype=object).notna().any() for values in (trace.x, trace.y))
        for trace in traces
    )
    if not has_points:  # plotly would draw axes from -1 to 6 and 4
        figure.update_xaxes(visible=False).update_yaxes(visible=False)
        figure.add_annotation(text=_EMPTY, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return figure.update_layout(
        title={"text": title, "font": {"size": 15}, "y": 1, "yanchor": "top", "pad": {"t": 8}},
        xaxis_title=bottom,
        yaxis_title=left,
        height=_HEIGHT_PX,
        margin={"l": 10, "r": 10, "t": 44, "b": 10},
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"},
        hovermode="x unified",
    ).update_layout(own)


def _fit_first_points(figure: go.Figure) -> None:
    """Mark a line's only point, for which plotly draws no line, and keep axes within possible values."""
    traces: Any = figure.data
    if not traces or any(trace.type != "scatter" for trace in traces):
        return
    for trace in traces:
        if trace.mode == "lines" and min(len(_numbers(trace.x)), len(_numbers(trace.y))) == 1:
            trace.mode = "lines+markers"
    for update, name in ((figure.update_xaxes, "x"), (figure.update_yaxes, "y")):
        values = {value for trace in traces for value in _numbers(trace[name])}
        if len(values) == 1:
            [value] = values
            ends = (0.0, _ROOM * value or 1.0)
            update(range=[min(ends), max(ends)])
        elif values and min(values) >= 0:
            update(rangemode="nonnegative")


def _numbers(values: Any) -> list[float]:
    given = [] if values is None else list(values)
    return [float(value) for value in given if isinstance(value, numbers.Real) and math.isfinite(value)]


def add_line(
    figure: go.Figure,
    x: Any,
    y: Any,
    name: str,
    colour: str,
    width: float = 2,
    number: str = ".3f",
    **more: Any,
) -> None:
    """Add a line; `laid_out` marks its point if it has only one.

    Args:
        x, y: columns of equal length; NaN for gaps.
        number: format of a value under the mouse.
        more: further properties of the trace, which override these.
    """
    line = {"color": colour, "width": width}
    figure.add_scatter(
        **{"x": x, "y": y, "name": name, "mode": "lines", "line": line, "hovertemplate": f"%{{y:{number}}}"}
        | more
    )


def as_bill(figure: go.Figure, title: str, modelled: bool, **own: Any) -> go.Figure:
    """Return a chart of horizontal bars of dollars, with its titles.

    Args:
        figure: figure with all its bars, in dollars that are modelled or not; `own` as for `laid_out`.
    """
    own = {"barmode": "stack", "hovermode": "closest", "xaxis_tickprefix": "$"} | own
    return laid_out(figure, title, dollars(modelled), "", **own)


def add_level(figure: go.Figure, level: float, text: str = "") -> None:
    """Add a dashed line at a level: a limit, or where training began.

    Args:
        text: name of the level; empty for no text.
    """
    # Given an annotation without a text, even None, plotly.js writes "new text".
    note = {"text": text, "font": {"color": REFERENCE_COLOUR}}
    about: Any = {"annotation": note, "annotation_position": "bottom right"} if text else {}
    figure.add_hline(y=level, line={"color": REFERENCE_COLOUR, "width": 1.5, "dash": "dash"}, **about)


SHARES = ".3~p"
"""The tick format of shares: as many digits as keep two neighbours apart, `0.5%` or `50%`."""
