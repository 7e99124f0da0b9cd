"""The plots of the learning itself: four figures that show early when it goes wrong."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ui.charts.layout import BASELINE_COLOUR, SCORE_COLOUR, laid_out
from ui.data.run import RunView

_SIGNS = (  # metric, title, unit of the left axis (short: the plots are low), format of its numbers
    ("zero_variance", "Groups without variance", "Share of the prompts", ".0%"),
    ("ratio_deviation", "Ratio deviation at the first update", "|ratio - 1|", ".1~e"),
    ("kl", "KL to the reference policy", "KL (nats)", ".2~g"),
    ("clip_share", "Clipped denoising steps", "Share of those trained", ".0%"),
)


def learning_courses(view: RunView) -> dict[str, np.ndarray]:
    """The four figures over the iterations; NaN where one was not measured."""
    kl = view.metric("kl")
    if not np.nan_to_num(kl).any():
        kl = np.full(len(kl), np.nan)  # the trainer writes 0 where it does not measure it
    with np.errstate(divide="ignore", invalid="ignore"):
        share = view.metric("groups_dropped") / view.metric("groups")
    return {
        "zero_variance": share,
        "ratio_deviation": view.metric("ratio_deviation"),
        "kl": kl,
        "clip_share": view.metric("clip_share"),
    }


def learning_charts(view: RunView) -> list[go.Figure]:
    """A plot for each figure that was measured; the ratio's with its limit."""
    courses = learning_courses(view)
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
            hovertemplate="%{y:.1%}" if numbers.endswith("%") else "%{y:.3g}",
        )  # fmt: skip
        if name == "ratio_deviation" and isinstance(limit, int | float):
            figure.add_hline(
                y=limit, line={"color": BASELINE_COLOUR, "width": 1.5, "dash": "dash"},
                annotation={"text": f"limit {limit:g}", "font": {"color": BASELINE_COLOUR}},
                annotation_position="bottom right",
            )  # fmt: skip
        figure = laid_out(figure, title, "Iteration", left)
        figure.update_layout(height=260, showlegend=False)
        figure.update_yaxes(rangemode="tozero", tickformat=numbers)
        figures.append(figure)
    return figures
