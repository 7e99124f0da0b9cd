"""Data and charts of the page Convergence: scores, seeds, signs of training, image quality, any metric."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from storage.evaluations.figures import over_seeds
from storage.evaluations.quality import JUDGE, PART, QUALITY, Group, QualityVerdict
from storage.record.queries.runs import alike_but_seed, paid_usd, runs_of_other_seeds, score_courses
from storage.record.run_store import RunStore
from ui.charts.layout import MEASURE_TITLES, SHARES, Axis, Measure, add_level, add_line, axis_titles, laid_out
from ui.data.run import QualityView, RunView
from ui.elements.formatting import time_unit
from ui.elements.palette import RUN_COLOURS, SAMPLES_COLOUR, SCORE_COLOUR, faded

_BAND_COLOUR = faded(SCORE_COLOUR, 0.18)
_TRAINING = ("training samples, mean", SAMPLES_COLOUR, 1.2)
_HELD_OUT = ("held-out prompts", SCORE_COLOUR, 3)
_MARKED = "lines+markers"
_SIGNS = (  # metric, title, unit of the left axis (short, as the plots are low), format
    ("zero_variance", "Prompts without signal", "Share of the prompts", SHARES),
    ("ratio_deviation", "Ratio deviation at the first update", "|ratio - 1|", ".1~e"),
    ("kl", "KL to the reference policy", "KL (nats)", ".2~g"),
    ("clip_share", "Clipped denoising steps", "Share of those trained", SHARES),
    ("pair_accuracy", "Pairs ordered like the reward", "Share of the pairs", SHARES),
    ("pair_margin", "Margin of the better image", "Margin (nats)", ".2~g"),
)


def read_seed_courses(store: RunStore, run_id: str) -> tuple[dict[int, str], pd.DataFrame]:
    """Return the runs that differ from one only in the seed, by seed, and their scores if there are any."""
    with store.reading() as connection:
        alike = alike_but_seed(connection, run_id)
    # By name, to keep the files of all other runs closed.
    with store.reading(*(alike or [run_id])) as connection:
        seeds = runs_of_other_seeds(connection, run_id)
        others = list(seeds.values()) if len(seeds) > 1 else []
        return seeds, score_courses(connection, others)


def mean_over_seeds(courses: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the mean over runs at each iteration that all of them evaluated, and its 95 % interval.

    The interval is Student's, so it is wide with two runs; it is clipped to scores' range, 0 to 1.
    Columns iteration, mean, low, high, seeds; empty if fewer than two runs share an iteration.
    """
    runs = len(set(courses["run_id"].tolist()))
    rows = []
    for iteration, part in courses.groupby("iteration", sort=True):
        if runs < 2 or len(part) < runs:
            continue
        found = over_seeds(part[measure].tolist())
        rows.append((iteration, found.mean, found.low, found.high, runs))
    return pd.DataFrame(rows, columns=["iteration", "mean", "low", "high", "seeds"])


def score_chart(view: RunView, measure: Measure, over: Axis, judges: pd.DataFrame | None = None) -> go.Figure:
    """Chart held-out results (bold), training's (thin), the second judge's, and the initial level (dashed).

    Args:
        judges: columns iteration and `judge`, if there is a second judge; drawn beside the score.
    """
    heading, bottom = axis_titles(over, view.elapsed_s, view.is_modelled)
    training = "reward_mean" if measure == "score" else "exact_share"
    figure = go.Figure()
    if training in view.metrics:
        add_line(figure, _along(view, view.metrics, over), view.metrics[training], *_TRAINING)
    add_line(
        figure, _along(view, view.scores, over), view.scores[measure], *_HELD_OUT, mode=_MARKED,
        marker={"size": 8}, cliponaxis=False,
    )  # fmt: skip
    if measure == "score" and judges is not None:
        judged = view.scores.merge(judges, on="iteration")
        add_line(
            figure, _along(view, judged, over), judged[JUDGE], "second judge", RUN_COLOURS[1], mode=_MARKED,
            cliponaxis=False,
        )  # fmt: skip
    if not view.scores.empty:
        before = float(view.scores[measure].iloc[0])
        add_level(figure, before, f"before training {before:.2f}")
    # A single first score is at 0, not between -1 and 1.
    return laid_out(figure, heading, bottom, MEASURE_TITLES[measure], xaxis_rangemode="nonnegative")


def _along(view: RunView, frame: pd.DataFrame, over: Axis) -> np.ndarray:
    if over == "time":
        return frame["elapsed_s"].to_numpy() / time_unit(view.elapsed_s)[0]
    iterations = frame["iteration"].to_numpy()
    return paid_usd(view.cost, iterations) if over == "usd" else iterations


def interval_chart(courses: pd.DataFrame, seeds: dict[int, str], measure: Measure) -> go.Figure:
    """Chart every seed's curve (thin), their mean (bold) and the interval of the mean (shaded).

    Args:
        courses: as for `mean_over_seeds`.
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
        add_line(figure, own["iteration"], own[measure], f"seed {seed}", SAMPLES_COLOUR, 1.2)
    if not mean.empty:
        add_line(figure, mean["iteration"], mean["mean"], "mean", SCORE_COLOUR, 3, mode=_MARKED)
        add_level(figure, float(mean["mean"].iloc[0]))
    return laid_out(figure, f"Over {len(seeds)} run seeds", "Iteration", MEASURE_TITLES[measure])


def learning_charts(view: RunView) -> list[go.Figure]:
    """Return a plot for each measured figure of the objective; the ratio's shows its limit."""
    courses = view.learning_courses()
    limit = view.number("algorithm", "ratio_tolerance")
    figures = []
    for name, title, left, numbers in _SIGNS:
        if not np.isfinite(courses[name]).any():
            continue
        figure, number = go.Figure(), ".1%" if numbers == SHARES else ".3g"
        add_line(figure, view.metrics["iteration"], courses[name], title, SCORE_COLOUR, 1.5, number)
        if name == "ratio_deviation" and limit is not None:
            add_level(figure, limit, f"limit {limit:g}")
        figures.append(laid_out(
            figure, title, "Iteration", left, height=260, showlegend=False,
            yaxis_rangemode="tozero", yaxis_tickformat=numbers,
        ))  # fmt: skip
    return figures


_TITLES: dict[Group, str] = {  # the second judge is drawn beside the score
    "truth": "Distance to the rendered picture",
    "look": "Looks of the images",
    "variety": "Variety of the images",
}


def quality_charts(quality: QualityView) -> list[go.Figure]:
    """Return a chart of the change for each group of measured figures; none before there is a change."""
    if quality.verdict is None:
        return []
    figures = []
    for group, title in _TITLES.items():
        names = [name for name in quality.figures if QUALITY[name].group == group]
        if not names:
            continue
        figure = go.Figure()
        for place, name in enumerate(names):
            values = quality.means[name].to_numpy(dtype=float)
            change = (values - values[0]) / max(abs(values[0]), QUALITY[name].least)
            add_line(
                figure, quality.means["iteration"], change, QUALITY[name].title,
                RUN_COLOURS[place % len(RUN_COLOURS)], number="+.1%", mode=_MARKED,
            )  # fmt: skip
        add_level(figure, 0.0, "before training")
        left = "Change since before training"
        figures.append(laid_out(figure, title, "Iteration", left, yaxis_tickformat=f"+{SHARES}"))
    return figures


def part_charts(view: RunView, quality: QualityView) -> list[go.Figure]:
    """Return a chart for each part of a summed score: held-out images (bold) and training's (thin)."""
    figures = []
    for name in quality.parts:
        figure = go.Figure()
        training = f"reward_part_{name}"
        if view.measured(training).size:
            add_line(figure, view.metrics["iteration"], view.metric(training), *_TRAINING)
        means = quality.means[f"{PART}{name}"]
        add_line(figure, quality.means["iteration"], means, *_HELD_OUT, mode=_MARKED)
        add_level(figure, float(means.iloc[0]))
        figures.append(laid_out(figure, f"Part of the score: {name}", "Iteration", "Score (0 to 1)"))
    return figures


def quality_table(verdict: QualityVerdict) -> pd.DataFrame:
    """Return each figure before training and now, and the change with its bounds (NaN: too few prompts)."""
    worse = {change.name for change in verdict.worse}
    rows = [
        (
            QUALITY[change.name].title, change.before, change.after, change.after - change.before,
            *(bound if math.isfinite(bound) else math.nan for bound in (change.low, change.high)),
            "yes" if change.name in worse else "",
        )
        for change in verdict.others
    ]  # fmt: skip
    columns = ["figure", "before", "now", "difference", "low (95 %)", "high (95 %)", "worse"]
    return pd.DataFrame(rows, columns=columns)


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """Return a moving average without initial bias, exponential by a weight in (0, 1); gaps stay gaps."""
    course = pd.Series(values, dtype=float)
    return course.ewm(alpha=1 - weight, ignore_na=True).mean().where(course.notna()).to_numpy()


def metric_chart(view: RunView, name: str, smoothing: float, over: Axis) -> go.Figure:
    """Return a chart of a metric: a thin raw line, a bold smoothed one.

    Args:
        smoothing: weight of the past; 0 for no smoothing.
    """
    values, figure = view.metric(name), go.Figure()
    x = _along(view, view.metrics, over)
    bottom = axis_titles(over, view.elapsed_s, view.is_modelled)[1]
    line = (SAMPLES_COLOUR, 1.2) if smoothing else (SCORE_COLOUR, 2)
    add_line(figure, x, values, "raw", *line, ".4g")
    if smoothing:
        smooth = smoothed(values, smoothing)
        add_line(figure, x, smooth, f"smoothed by {smoothing:g}", SCORE_COLOUR, 3, ".4g")
    return laid_out(figure, name, bottom, "", height=280, showlegend=bool(smoothing))
