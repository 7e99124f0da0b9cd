"""The work of devices, recorded or simulated, and its charts: time line, groups, time by use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from storage.record.queries import devices as device_queries
from storage.record.queries.runs import WorkClock
from storage.record.reading import RecordConnection
from storage.text import usd
from ui.charts.layout import laid_out
from ui.elements.formatting import chart_text, time_unit
from ui.elements.palette import DEGREE_COLOURS, EVENT_COLOUR, REFERENCE_COLOUR, STATE_COLOURS, UNKNOWN_COLOUR

_EVENT_MARKS = {  # kind of event -> symbol, colour
    "joined": ("triangle-right", EVENT_COLOUR),
    "notice": ("triangle-down", EVENT_COLOUR),
    "withdrawn": ("triangle-up", EVENT_COLOUR),
    "failed": ("cross", EVENT_COLOUR),
    "left": ("square", EVENT_COLOUR),
    "lost": ("x", STATE_COLOURS["lost"]),
}
_BREAK_S = 30.0  # without any device at work; shorter ones stay visible
_MOST_BORDERS = 14  # numbered lines at ends of iterations; more would not fit, so some are left out
_ROW_PX = 26
_AROUND_PX = 220  # above and below the rows: the title, the numbers of iterations, the axis, a legend in rows
_MOST_EVENTS = 300
_MOST_GROUPS = 1000

MOST_BARS = 100  # of a market's utilisation
MOST_INTERVALS = 3000  # most intervals in a time line; more would make the browser slow


@dataclass(frozen=True)
class DeviceCourse:
    """The work of the devices in some iterations; see storage/record/queries/devices.py for the columns."""

    intervals: pd.DataFrame
    events: pd.DataFrame
    groups: pd.DataFrame
    degrees: pd.DataFrame


def read_course(connection: RecordConnection, run_id: str, first: int, last: int) -> DeviceCourse:
    """Return the work of the devices in some iterations; iteration 0 is the evaluation before training."""
    return DeviceCourse(
        intervals=device_queries.device_intervals(connection, run_id, first, last, MOST_INTERVALS),
        events=device_queries.device_events(connection, run_id, first, last, _MOST_EVENTS),
        groups=device_queries.sequence_groups(connection, run_id, first, last, _MOST_GROUPS),
        degrees=device_queries.degree_times(connection, run_id, first, last),
    )


def gantt_chart(course: DeviceCourse, ends: pd.DataFrame, mark: str = "") -> go.Figure:
    """Return a chart of every device's states over time, the ends of iterations, and the devices' events.

    A replacement is in the row of the device that it replaces. Breaks between a kill and a resume are left
    out, and marked by a dashed line.

    Args:
        course: course of the iterations to draw, with at least one interval.
        ends: ends of the iterations: columns iteration, ended_at.
        mark: text beside dollars, such as `(modelled)`; empty for none.
    """
    intervals, clock = course.intervals, WorkClock(course.intervals, _BREAK_S)
    figure = go.Figure()
    for state, part in _by_state(intervals):
        paid = [f"{usd(row['usd'])} {mark}".rstrip() for row in part.to_dict("records")]
        _add_bars(
            figure, part, clock, state,
            {"color": STATE_COLOURS.get(state, UNKNOWN_COLOUR), "line": {"width": 0}},
            [part["worker"], paid, map(_when, part.to_dict("records"))],
            f"%{{customdata[1]}}: {state} for %{{customdata[0]}} (%{{customdata[2]}}), %{{customdata[3]}}",
        )  # fmt: skip
    rows = course.events["worker"].map(_device_row)
    _add_events(figure, course.events.loc[rows.isin(intervals["worker"].map(_device_row))], clock)
    _add_borders(figure, intervals, ends, clock)
    return _by_device(figure, "What every device did", intervals, clock, margin_t=64)


def utilisation_charts(utilisation: pd.DataFrame) -> list[go.Figure]:
    """Chart the paid time of each used market by state, spot first, from `queries.devices.utilisation`."""
    figures = []
    for market in ("spot", "reserved"):
        own, figure = utilisation.loc[utilisation["market"] == market], go.Figure()
        if own.empty:
            continue
        for state, part in _by_state(own):
            figure.add_bar(
                x=(part["first"] + part["last"]) / 2, y=part["share"], name=state,
                width=part["last"] - part["first"] + 1,
                marker={"color": STATE_COLOURS.get(state, UNKNOWN_COLOUR), "line": {"width": 0}},
                customdata=list(zip(part["first"], part["last"], part["device_s"], strict=True)),
                hovertemplate=f"{state}: %{{y:.1%}}, %{{customdata[2]:.0f}} device-seconds, "
                "iterations %{customdata[0]} to %{customdata[1]}<extra></extra>",
            )  # fmt: skip
        figures.append(laid_out(
            figure, f"Use of {market} devices", "Iteration", "Share of the paid time", barmode="stack",
            bargap=0, hovermode="closest", yaxis_range=[0, 1], yaxis_tickformat=".0%",
        ))  # fmt: skip
    return figures


def groups_chart(course: DeviceCourse) -> go.Figure:
    """Chart each device's groups over time, at least one, coloured by their number of devices."""
    groups, clock = course.groups, WorkClock(course.intervals, _BREAK_S)
    figure = go.Figure()
    for number, degree in enumerate(sorted(set(groups["degree"].tolist()))):
        part, colour = groups.loc[groups["degree"] == degree], DEGREE_COLOURS[number % len(DEGREE_COLOURS)]
        _add_bars(
            figure, part, clock, f"{degree} together" if degree > 1 else "alone",
            {"color": colour, "line": {"width": 1, "color": "white"}},
            [part["members"].str.replace("+", ", "), part["epoch"]],
            "%{customdata[1]}<br>epoch %{customdata[2]}, %{customdata[0]}",
        )  # fmt: skip
    return _by_device(figure, "Which devices shared images", course.intervals, clock)


def _add_bars(
    figure: go.Figure,
    part: pd.DataFrame,
    clock: WorkClock,
    name: str,
    marker: dict,
    more: Sequence[Iterable],
    hover: str,
) -> None:
    """Add states or groups of devices; `hover` names their seconds `customdata[0]`, and `more` behind it."""
    unit_s, length_s = time_unit(clock.total_s)[0], part["ended_at"] - part["started_at"]
    figure.add_bar(
        y=part["worker"].map(_device_row), x=length_s / unit_s,
        base=clock.elapsed_s(part["started_at"].to_numpy()) / unit_s, name=name, orientation="h",
        marker=marker, customdata=list(zip(map("{:.2f} s".format, length_s), *more, strict=True)),
        hovertemplate=f"{hover}<extra></extra>",
    )  # fmt: skip


def _add_events(figure: go.Figure, events: pd.DataFrame, clock: WorkClock) -> None:
    unit_s = time_unit(clock.total_s)[0]
    for kind in dict.fromkeys(events["kind"]):
        part = events.loc[events["kind"] == kind]
        symbol, colour = _EVENT_MARKS.get(kind, ("circle", UNKNOWN_COLOUR))
        figure.add_scatter(
            x=clock.elapsed_s(part["happened_at"].to_numpy()) / unit_s, y=part["worker"].map(_device_row),
            name=f"device {kind}", mode="markers", cliponaxis=False,
            marker={
                "symbol": symbol, "color": colour, "size": 12, "line": {"width": 1, "color": "white"},
            },
            customdata=list(zip(part["worker"], part["detail"].map(chart_text), strict=True)),
            hovertemplate=f"%{{customdata[0]}} {kind} %{{customdata[1]}}<extra></extra>",
        )  # fmt: skip


def _add_borders(figure: go.Figure, intervals: pd.DataFrame, ends: pd.DataFrame, clock: WorkClock) -> None:
    unit_s = time_unit(clock.total_s)[0]
    begin, end = intervals["started_at"].min(), intervals["ended_at"].max()
    ends = ends.loc[ends["ended_at"].between(begin, end, inclusive="right")]
    ends = ends.iloc[:: max(1, -(-len(ends) // _MOST_BORDERS))]
    positions = clock.elapsed_s(ends["ended_at"].to_numpy(dtype=float)) / unit_s
    lines = [(position, "solid") for position in positions]
    lines += [(position, "dash") for position in clock.breaks_s / unit_s]
    figure.update_layout(
        shapes=[
            {
                "type": "line", "x0": position, "x1": position, "y0": 0, "y1": 1, "yref": "paper",
                "line": {"color": REFERENCE_COLOUR, "width": 1.2, "dash": dash},
            }
            for position, dash in lines
        ],
        annotations=[
            {
                "x": position, "y": 1, "yref": "paper", "text": f"end of {iteration}", "showarrow": False,
                "xanchor": "right", "yanchor": "bottom", "font": {"size": 11, "color": REFERENCE_COLOUR},
            }
            for position, iteration in zip(positions, ends["iteration"], strict=True)
        ],
    )  # fmt: skip


def _by_device(
    figure: go.Figure, title: str, intervals: pd.DataFrame, clock: WorkClock, **own: Any
) -> go.Figure:
    """Lay out a row for each device: reserved before spot, and `spot-2` before `spot-10`."""
    market = dict(zip(intervals["worker"].map(_device_row), intervals["market"], strict=True))

    def order(row: str) -> tuple[bool, str, list[int]]:
        numbers = [int(part) for part in re.findall(r"\d+", row)]
        return market[row] != "reserved", re.sub(r"\d+", "", row), numbers

    rows, (unit_s, unit) = sorted(market, key=order), time_unit(clock.total_s)
    return laid_out(
        figure, title, f"Time at work ({unit})", "", barmode="overlay", bargap=0.25, hovermode="closest",
        height=_AROUND_PX + _ROW_PX * max(4, len(rows)),
        xaxis={"showgrid": False, "range": [0, clock.total_s / unit_s]},
        yaxis={
            "type": "category", "categoryorder": "array", "categoryarray": rows,
            "range": [len(rows) - 0.5, -0.5], "tickmode": "array", "tickvals": rows,
        },
        **own,
    )  # fmt: skip


def _device_row(worker: str) -> str:
    """Return the row of a worker: `spot-0.1` replaces `spot-0`."""
    return worker.split(".")[0]


def _by_state(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the states in the legend's order, unknown ones last, each with its rows."""
    for state in (*STATE_COLOURS, *sorted(set(frame["state"]) - STATE_COLOURS.keys())):
        part = frame.loc[frame["state"] == state]
        if not part.empty:
            yield state, part


def _when(row: dict) -> str:
    if row["phase"] == "evaluation":
        return f"evaluation after iteration {row['iteration']}"
    return f"iteration {row['iteration']}" + (", discarded" if row["phase"] == "discarded" else "")
