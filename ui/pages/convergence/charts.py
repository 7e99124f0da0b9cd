"""Charts of the page Convergence: the held-out score, its interval over run seeds, the signs of training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from storage.evaluations.quality import JUDGE
from ui.charts.layout import (
    SHARES,
    Axis,
    Measure,
    add_level,
    axis_titles,
    laid_out,
    measure_title,
)
from ui.data.run import RunView
from ui.elements.formatting import time_unit
from ui.elements.palette import RUN_COLOURS, SAMPLES_COLOUR, SCORE_COLOUR, faded
from ui.pages.convergence.data import mean_over_seeds

_BAND_COLOUR = faded(SCORE_COLOUR, 0.18)
_SIGNS = (  # metric, title, unit of the left axis (short: the plots are low), format of its numbers
    ("zero_variance", "Prompts without signal", "Share of the prompts", SHARES),
    ("ratio_deviation", "Ratio deviation at the first update", "|ratio - 1|", ".1~e"),
    ("kl", "KL to the reference policy", "KL (nats)", ".2~g"),
    ("clip_share", "Clipped denoising steps", "Share of those trained", SHARES),
    ("pair_accuracy", "Pairs ordered as the reward does", "Share of the pairs", SHARES),
    ("pair_margin", "Margin of the better image", "Margin (nats)", ".2~g"),
)


def score_chart(view: RunView, measure: Measure, over: Axis, judges: pd.DataFrame | None = None) -> go.Figure:
    """Chart held-out results (bold), training's (thin), the second judge's, the level at the start (dashed).

    Args:
        view: the run.
        measure: figure to draw.
        over: quantity on the bottom axis.
        judges: columns iteration and `judge`, if there is a second judge; drawn beside the score.
    """
    heading, bottom = axis_titles(over, view.elapsed_s, view.is_modelled)
    training = "reward_mean" if measure == "score" else "exact_share"
    figure = go.Figure()
    if training in view.metrics:
        figure.add_scatter(
            x=_along(view, view.metrics, over), y=view.metrics[training], name="training samples, mean",
            mode="lines", line={"color": SAMPLES_COLOUR, "width": 1.2}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
    figure.add_scatter(
        x=_along(view, view.scores, over), y=view.scores[measure], name="held-out prompts",
        mode="lines+markers", line={"color": SCORE_COLOUR, "width": 3}, marker={"size": 8},
        hovertemplate="%{y:.3f}", cliponaxis=False,
    )  # fmt: skip
    if measure == "score" and judges is not None:
        judged = view.scores.merge(judges, on="iteration")
        figure.add_scatter(
            x=_along(view, judged, over), y=judged[JUDGE], name="second judge", mode="lines+markers",
            line={"color": RUN_COLOURS[1], "width": 2}, hovertemplate="%{y:.3f}", cliponaxis=False,
        )  # fmt: skip
    if not view.scores.empty:
        before = float(view.scores[measure].iloc[0])
        add_level(figure, before, f"before training {before:.2f}")
    figure = laid_out(figure, heading, bottom, measure_title(measure))
    return figure.update_xaxes(rangemode="nonnegative")  # the first score alone is at 0, not between -1 and 1


def _along(view: RunView, frame: pd.DataFrame, over: Axis) -> np.ndarray:
    if over == "time":
        return frame["elapsed_s"].to_numpy() / time_unit(view.elapsed_s)[0]
    iterations = frame["iteration"].to_numpy()
    return view.usd_at(iterations) if over == "usd" else iterations


def interval_chart(courses: pd.DataFrame, seeds: dict[int, str], measure: Measure) -> go.Figure:
    """Chart every seed's curve (thin), their mean (bold) and the interval of the mean (shaded).

    Args:
        courses: as for `mean_over_seeds`.
        seeds: runs by seed.
        measure: figure to draw.
    """
    figure = go.Figure()
    mean = mean_over_seeds(courses, measure)
    if not mean.empty:
        figure.add_scatter(
            x=[*mean["iteration"], *mean["iteration"][::-1]], y=[*mean["high"], *mean["low"][::-1]],
            fill="toself", fillcolor=_BAND_COLOUR, line={"width": 0}, name="95 % interval of the mean",
            hoverinfo="skip", mode="lines",
        )  # fmt: skip
    for seed, run_id in seeds.items():
        own = courses.loc[courses["run_id"] == run_id]
        figure.add_scatter(
            x=own["iteration"], y=own[measure], name=f"seed {seed}", mode="lines",
            line={"color": SAMPLES_COLOUR, "width": 1.2}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
    if not mean.empty:
        figure.add_scatter(
            x=mean["iteration"], y=mean["mean"], name="mean", mode="lines+markers",
            line={"color": SCORE_COLOUR, "width": 3}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
        add_level(figure, float(mean["mean"].iloc[0]))
    return laid_out(figure, f"Over {len(seeds)} run seeds", "Iteration", measure_title(measure))


def learning_charts(view: RunView) -> list[go.Figure]:
    """Return a plot for each measured figure that the objective has; the ratio's with its limit."""
    courses = view.learning_courses()
    limit = view.setting("algorithm", "ratio_tolerance")
    figures = []
    for name, title, left, numbers in _SIGNS:
        values = courses[name]
        if not np.isfinite(values).any():
            continue
        figure = go.Figure()
        figure.add_scatter(
            x=view.metrics["iteration"], y=values, name=title, line={"color": SCORE_COLOUR, "width": 1.5},
            mode="lines" if np.isfinite(values).sum() > 1 else "markers",
            hovertemplate="%{y:.1%}" if numbers == SHARES else "%{y:.3g}",
        )  # fmt: skip
        if name == "ratio_deviation" and isinstance(limit, int | float):
            add_level(figure, limit, f"limit {limit:g}")
        figure = laid_out(figure, title, "Iteration", left)
        figure.update_layout(height=260, showlegend=False)
        figure.update_yaxes(rangemode="tozero", tickformat=numbers)
        figures.append(figure)
    return figures
