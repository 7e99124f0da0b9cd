"""The work of devices, recorded or simulated, and its charts: time line, groups, time by use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from storage.record.queries import devices as device_queries
from storage.record.queries.runs import WorkClock
from storage.record.reading import RecordConnection
from ui.charts.layout import laid_out
from ui.elements.formatting import chart_text, time_unit, usd
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
_MOST_BORDERS = 14  # numbered lines at ends of iterations, which have to fit; of more, some are left out
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
    unit_s, unit = time_unit(clock.total_s)
    figure = go.Figure()
    for state in _in_legends_order(intervals["state"].tolist()):
        part = intervals.loc[intervals["state"] == state]
        paid = [f"{usd(row['usd'])} {mark}".rstrip() for row in part.to_dict("records")]
        _add_bars(
            figure, part, clock, state, {"color": _colour(state), "line": {"width": 0}},
            [part["worker"], paid, map(_when, part.to_dict("records"))],
            f"%{{customdata[1]}}: {state} for %{{customdata[0]}} (%{{customdata[2]}}), %{{customdata[3]}}",
        )  # fmt: skip
    rows = _in_order_of_rows(intervals)
    events = course.events.loc[course.events["worker"].map(_device_row).isin(rows)]
    _add_events(figure, events, clock, unit_s)
    figure = laid_out(figure, "What every device did", f"Time at work ({unit})", "")
    _add_borders(figure, intervals, ends, clock, unit_s)
    figure.update_layout(margin={"t": 64})
    return _with_rows(figure, rows, clock.total_s / unit_s)


def utilisation_charts(utilisation: pd.DataFrame) -> list[go.Figure]:
    """Chart the paid time of each used market by state, spot first, from `queries.devices.utilisation`."""
    figures = []
    for market in ("spot", "reserved"):
        own, figure = utilisation.loc[utilisation["market"] == market], go.Figure()
        if own.empty:
            continue
        for state in _in_legends_order(own["state"].tolist()):
            part = own.loc[own["state"] == state]
            figure.add_bar(
                x=(part["first"] + part["last"]) / 2, y=part["share"], name=state,
                width=part["last"] - part["first"] + 1,
                marker={"color": _colour(state), "line": {"width": 0}},
                customdata=list(zip(part["first"], part["last"], part["device_s"], strict=True)),
                hovertemplate=f"{state}: %{{y:.1%}}, %{{customdata[2]:.0f}} device-seconds, "
                "iterations %{customdata[0]} to %{customdata[1]}<extra></extra>",
            )  # fmt: skip
        figure = laid_out(figure, f"Use of {market} devices", "Iteration", "Share of the paid time")
        figure.update_layout(barmode="stack", bargap=0, hovermode="closest")
        figures.append(figure.update_yaxes(range=[0, 1], tickformat=".0%"))
    return figures


def groups_chart(course: DeviceCourse) -> go.Figure:
    """Chart each device's groups over time, at least one, coloured by their number of devices."""
    groups, intervals, clock = course.groups, course.intervals, WorkClock(course.intervals, _BREAK_S)
    unit_s, unit = time_unit(clock.total_s)
    figure = go.Figure()
    for number, degree in enumerate(sorted(set(groups["degree"].tolist()))):
        part, colour = groups.loc[groups["degree"] == degree], DEGREE_COLOURS[number % len(DEGREE_COLOURS)]
        _add_bars(
            figure, part, clock, f"{degree} together" if degree > 1 else "alone",
            {"color": colour, "line": {"width": 1, "color": "white"}},
            [part["members"].str.replace("+", ", "), part["epoch"]],
            "%{customdata[1]}<br>epoch %{customdata[2]}, %{customdata[0]}",
        )  # fmt: skip
    rows = _in_order_of_rows(intervals)
    figure = laid_out(figure, "Which devices shared images", f"Time at work ({unit})", "")
    return _with_rows(figure, rows, clock.total_s / unit_s)


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


def _colour(state: str) -> str:
    return STATE_COLOURS.get(state, UNKNOWN_COLOUR)


def _add_events(figure: go.Figure, events: pd.DataFrame, clock: WorkClock, unit_s: float) -> None:
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


def _add_borders(
    figure: go.Figure, intervals: pd.DataFrame, ends: pd.DataFrame, clock: WorkClock, unit_s: float
) -> None:
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


def _with_rows(figure: go.Figure, rows: list[str], longest: float) -> go.Figure:
    height = _AROUND_PX + _ROW_PX * max(4, len(rows))
    figure.update_layout(barmode="overlay", bargap=0.25, hovermode="closest", height=height)
    figure.update_xaxes(showgrid=False, range=[0, longest])
    return figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=rows, range=[len(rows) - 0.5, -0.5],
        tickmode="array", tickvals=rows,
    )  # fmt: skip


def _in_order_of_rows(intervals: pd.DataFrame) -> list[str]:
    """Return the rows of the devices: reserved before spot, and `spot-2` before `spot-10`."""
    rows = intervals["worker"].map(_device_row)
    market = dict(zip(rows, intervals["market"], strict=True))

    def order(row: str) -> tuple[bool, str, list[int]]:
        numbers = [int(part) for part in re.findall(r"\d+", row)]
        return market[row] != "reserved", re.sub(r"\d+", "", row), numbers

    return sorted(set(rows), key=order)


def _device_row(worker: str) -> str:
    """Return the row of a worker: `spot-0.1` replaces `spot-0`."""
    return worker.split(".")[0]


def _in_legends_order(states: list[str]) -> list[str]:
    known = [state for state in STATE_COLOURS if state in set(states)]
    return known + sorted(set(states) - set(known))


def _when(row: dict) -> str:
    if row["phase"] == "evaluation":
        return f"evaluation after iteration {row['iteration']}"
    return f"iteration {row['iteration']}" + (", discarded" if row["phase"] == "discarded" else "")
