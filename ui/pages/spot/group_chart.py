"""The plot of the groups that shared sequences: who was in which, and by how many, over time."""

from __future__ import annotations

import plotly.graph_objects as go

from ui.charts.layout import laid_out
from ui.elements.formatting import time_unit
from ui.pages.spot.charts import device_row, in_order_of_rows
from ui.pages.spot.data import DeviceCourse
from ui.pages.spot.work_clock import WorkClock

# From a device that works alone to many that share; told apart on a light and on a dark page.
_DEGREE_COLOURS = ("#9aa5b1", "#2f80ed", "#27ae7a", "#7c6fd9", "#e0793a")
_ROW_PX = 26


def groups_chart(course: DeviceCourse) -> go.Figure:
    """Every device's groups over time, coloured by how many devices were in them.

    Args:
        course: the iterations to draw, with at least one group.
    """
    groups, intervals = course.groups, course.intervals
    clock = WorkClock(
        intervals["started_at"].to_numpy(dtype=float), intervals["ended_at"].to_numpy(dtype=float)
    )
    unit_s, unit = time_unit(clock.total_s)
    placed = groups.assign(
        row=groups["worker"].map(device_row),
        begin=clock.elapsed_s(groups["started_at"].to_numpy(dtype=float)) / unit_s,
        length=(groups["ended_at"] - groups["started_at"]) / unit_s,
    )
    figure = go.Figure()
    for place, degree in enumerate(sorted(set(placed["degree"].tolist()))):
        part = placed.loc[placed["degree"] == degree]
        figure.add_bar(
            y=part["row"], x=part["length"], base=part["begin"], orientation="h",
            name=f"{degree} together" if degree > 1 else "alone",
            marker={
                "color": _DEGREE_COLOURS[place % len(_DEGREE_COLOURS)],
                "line": {"width": 1, "color": "white"},
            },
            customdata=[
                (
                    row["members"].replace("+", ", "),
                    row["epoch"],
                    f"{row['ended_at'] - row['started_at']:.2f} s",
                )
                for row in part.to_dict("records")
            ],
            hovertemplate="%{customdata[0]}<br>epoch %{customdata[1]}, %{customdata[2]}<extra></extra>",
        )  # fmt: skip
    rows = in_order_of_rows(intervals)
    figure = laid_out(figure, "Which devices shared images", f"Time at work ({unit})", "")
    figure.update_layout(
        barmode="overlay", bargap=0.25, hovermode="closest", height=150 + _ROW_PX * max(4, len(rows))
    )
    figure.update_xaxes(showgrid=False, range=[0, clock.total_s / unit_s])
    return figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=rows, range=[len(rows) - 0.5, -0.5],
        tickmode="array", tickvals=rows,
    )  # fmt: skip
