"""How sure a curve is: runs that differ in the seed alone, their mean and its interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.special import stdtrit

from ui.charts.layout import BASELINE_COLOUR, SCORE_COLOUR, TRAINING_COLOUR, Measure, laid_out

_BAND_COLOUR = "rgba(47,128,237,0.18)"


def mean_over_seeds(courses: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The mean over runs at each iteration that all of them have evaluated, and its 95 % interval.

    The interval is Student's, so with two runs it is wide; it is cut at 0 and 1, where scores end.

    Args:
        courses: as `comparisons.score_courses` gives them, of runs of different seeds.
        measure: which figure.

    Returns:
        Columns iteration, mean, low, high, seeds; empty where fewer than two runs share an iteration.
    """
    runs = len(set(courses["run_id"].tolist()))
    rows = []
    for iteration, part in courses.groupby("iteration", sort=True):
        values = part[measure].to_numpy(dtype=float)
        if runs < 2 or len(values) < runs:
            continue
        margin = float(stdtrit(runs - 1, 0.975)) * float(values.std(ddof=1)) / np.sqrt(runs)
        mean = float(values.mean())
        rows.append((iteration, mean, max(0.0, mean - margin), min(1.0, mean + margin), runs))
    return pd.DataFrame(rows, columns=["iteration", "mean", "low", "high", "seeds"])


def interval_chart(courses: pd.DataFrame, seeds: dict[int, str], measure: Measure) -> go.Figure:
    """Every seed's curve (thin), their mean (bold) and the interval of the mean (shaded).

    Args:
        courses: as above.
        seeds: the runs by seed.
        measure: which figure.
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
            line={"color": TRAINING_COLOUR, "width": 1.2}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
    if not mean.empty:
        figure.add_scatter(
            x=mean["iteration"], y=mean["mean"], name="mean", mode="lines+markers",
            line={"color": SCORE_COLOUR, "width": 3}, hovertemplate="%{y:.3f}",
        )  # fmt: skip
        figure.add_hline(
            y=float(mean["mean"].iloc[0]), line={"color": BASELINE_COLOUR, "width": 1.5, "dash": "dash"}
        )
    title = "Score (0 to 1)" if measure == "score" else "Exact matches (share)"
    return laid_out(figure, f"Over {len(seeds)} run seeds", "Iteration", title)
