"""Training's vital signs: four figures that show early when the learning itself is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import streamlit as st

from ui.data.run import RunView
from ui.elements.formatting import figure, percent
from ui.pages.convergence.charts import learning_courses


@dataclass(frozen=True)
class _Sign:
    """One figure; `course` is its name in `ui.learning_charts.learning_courses`."""

    title: str
    course: str
    is_share: bool
    meaning: str


_SIGNS = (
    _Sign(
        "Ratio deviation", "ratio_deviation", False,
        "Largest |ratio - 1| at an iteration's first update. The policy has not changed yet, so this should "
        "be 0: what is left is numerical difference between generating and training.",
    ),
    _Sign(
        "KL to the reference", "kl", False,
        "How far the policy has moved from the model before training, in nats, as the mean of a denoising "
        "step. A steep rise with a falling score means that the reward is being gamed. Measured only where "
        "algorithm.kl_weight is above 0.",
    ),
    _Sign(
        "Clip share", "clip_share", True,
        "Share of the trained denoising steps whose gradient the clip range cuts off. Near 0 the steps are "
        "small; above half, most of the samples teach nothing: lower optimizer.learning_rate.",
    ),
    _Sign(
        "Groups without variance", "zero_variance", True,
        "Share of prompts whose samples all scored the same. They teach nothing, but were paid for.",
    ),
)  # fmt: skip


def show_health(view: RunView) -> None:
    """Show the signs in a row, as they are now; `ui.learning_charts` draws their courses."""
    if view.metrics.empty:
        st.caption("These figures appear with the first iteration.")
        return
    courses = learning_courses(view)
    for column, sign in zip(st.columns(len(_SIGNS)), _SIGNS, strict=True):
        course = courses[sign.course]
        course = course[np.isfinite(course)]
        if not course.size:
            column.metric(sign.title, "-", help=sign.meaning, border=True)
            continue
        latest = float(course[-1])
        column.metric(
            sign.title, percent(latest) if sign.is_share else figure(latest), help=sign.meaning, border=True
        )
    errors = np.nansum(view.metric("scorer_errors"))
    if errors > 0:
        st.warning(
            f"The scorer failed on {errors:.0f} images so far. Their prompt groups are not trained on. "
            "The errors are in the table `samples`.",
            icon=":material/visibility_off:",
        )
