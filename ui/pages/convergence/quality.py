"""The look of the held-out images beside their score, and the parts of a score that is a sum."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from storage.evaluations.quality import PART, QUALITY, FigureChange, Group, QualityVerdict
from ui.charts.layout import SHARES, add_level, laid_out
from ui.data.quality import QualityView
from ui.data.run import RunView
from ui.elements.palette import RUN_COLOURS, SAMPLES_COLOUR, SCORE_COLOUR

_TITLES: dict[Group, str] = {  # the second judge is drawn beside the score
    "truth": "Distance to the rendered picture",
    "look": "Looks of the images",
    "variety": "Variety of the images",
}


def quality_charts(quality: QualityView) -> list[go.Figure]:
    """Return a chart for each group of measured figures: their change since before training."""
    figures = []
    for group, title in _TITLES.items():
        names = [name for name in quality.figures if QUALITY[name].group == group]
        if not names:
            continue
        figure = go.Figure()
        for place, name in enumerate(names):
            values = quality.means[name].to_numpy(dtype=float)
            figure.add_scatter(
                x=quality.means["iteration"], y=_change_since_start(values, name),
                name=QUALITY[name].title, mode="lines+markers", hovertemplate="%{y:+.1%}",
                line={"color": RUN_COLOURS[place % len(RUN_COLOURS)], "width": 2},
            )  # fmt: skip
        add_level(figure, 0.0, "before training")
        figure = laid_out(figure, title, "Iteration", "Change since before training")
        figures.append(figure.update_yaxes(tickformat=f"+{SHARES}"))
    return figures


def _change_since_start(values: np.ndarray, name: str) -> np.ndarray:
    """Return the change from the first value, as a fraction of it."""
    return (values - values[0]) / max(abs(values[0]), QUALITY[name].least)


def part_charts(view: RunView, quality: QualityView) -> list[go.Figure]:
    """Return a chart for each part of a score that is a sum: held-out images (bold) and training's (thin)."""
    figures = []
    for name in quality.parts:
        figure = go.Figure()
        training = view.metric(f"reward_part_{name}")
        if np.isfinite(training).any():
            figure.add_scatter(
                x=view.metrics["iteration"], y=training, name="training samples, mean", mode="lines",
                line={"color": SAMPLES_COLOUR, "width": 1.2}, hovertemplate="%{y:.3f}",
            )  # fmt: skip
        means = quality.means[f"{PART}{name}"]
        figure.add_scatter(
            x=quality.means["iteration"], y=means, name="held-out prompts", mode="lines+markers",
            line={"color": SCORE_COLOUR, "width": 3}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
        add_level(figure, float(means.iloc[0]))
        figures.append(laid_out(figure, f"Part of the score: {name}", "Iteration", "Score (0 to 1)"))
    return figures


def quality_table(verdict: QualityVerdict) -> pd.DataFrame:
    """Return each figure before training and now, with the interval of the difference.

    Columns: figure, before, now, difference, its bounds (95 %; NaN with too few prompts), worse (`yes` or
    empty).
    """
    worse = {change.name for change in verdict.worse}
    return pd.DataFrame([_row(change, change.name in worse) for change in verdict.others])


def _row(change: FigureChange, worse: bool) -> dict[str, object]:
    return {
        "figure": QUALITY[change.name].title,
        "before": change.before,
        "now": change.after,
        "difference": change.after - change.before,
        "low (95 %)": change.low if math.isfinite(change.low) else math.nan,
        "high (95 %)": change.high if math.isfinite(change.high) else math.nan,
        "worse": "yes" if worse else "",
    }
