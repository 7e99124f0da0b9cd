"""Any metric of a run, smoothed, over iterations, time or dollars."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from ui.charts.layout import AXES, PLOT_SETTINGS, Axis, axis_titles, laid_out
from ui.data.methods import gives_verdict, metric_names
from ui.data.run import RunView
from ui.elements.formatting import time_unit
from ui.elements.palette import SAMPLES_COLOUR, SCORE_COLOUR


def show_metrics(view: RunView) -> None:
    """Let a person choose metrics, and draw each of them."""
    st.subheader("Metrics")
    names = metric_names(view.metrics, gives_verdict(view))
    if not names:
        st.caption("Metrics appear with the first iteration.")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom")
    chosen = row.multiselect("Metrics of the iterations", names, key="metrics", placeholder="Choose metrics")
    smoothing = row.slider(
        "Smoothing", 0.0, 0.95, 0.0, 0.05, key="metrics_smoothing", width=220,
        help="Weight of the past in an exponential moving average; 0 draws the figures as they are.",
    )  # fmt: skip
    over = row.segmented_control("Along", list(AXES), default="Iterations", key="metrics_axis")
    columns = [column for _ in chosen[::2] for column in st.columns(2)]
    for column, name in zip(columns, chosen, strict=False):
        figure = metric_chart(view, name, smoothing, AXES[over or "Iterations"])
        column.plotly_chart(figure, key=f"metric-{name}", config=PLOT_SETTINGS)


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """Return an exponential moving average without initial bias; gaps stay gaps.

    Args:
        values: values in order; NaN for gaps.
        weight: weight of the past, between 0 and 1, exclusive.
    """
    course = pd.Series(values, dtype=float)
    return course.ewm(alpha=1 - weight, ignore_na=True).mean().where(course.notna()).to_numpy()


def metric_chart(view: RunView, name: str, smoothing: float, over: Axis) -> go.Figure:
    """Return a chart of a metric: a thin raw line, a bold smoothed one.

    Args:
        view: the run.
        name: name of the metric.
        smoothing: weight of the past; 0 for no smoothing.
        over: quantity on the bottom axis.
    """
    values, figure = view.metric(name), go.Figure()
    x = view.metrics["iteration"].to_numpy()
    if over == "time":
        x = view.metrics["elapsed_s"].to_numpy() / time_unit(view.elapsed_s)[0]
    elif over == "usd":
        x = view.usd_at(x)
    bottom = axis_titles(over, view.elapsed_s, view.is_modelled)[1]
    line = {"color": SAMPLES_COLOUR, "width": 1.2} if smoothing else {"color": SCORE_COLOUR, "width": 2}
    mode = "lines" if np.isfinite(values).sum() > 1 else "markers"
    figure.add_scatter(x=x, y=values, name="as it is", mode=mode, line=line, hovertemplate="%{y:.4g}")
    if smoothing:
        figure.add_scatter(
            x=x, y=smoothed(values, smoothing), name=f"smoothed by {smoothing:g}", mode="lines",
            line={"color": SCORE_COLOUR, "width": 3}, hovertemplate="%{y:.4g}",
        )  # fmt: skip
    return laid_out(figure, name, bottom, "").update_layout(height=280, showlegend=bool(smoothing))
