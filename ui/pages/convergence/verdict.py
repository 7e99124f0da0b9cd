"""Short answers: whether the run improves, its cost, and the health of its training."""

from __future__ import annotations

from typing import Literal

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from storage.record.results import too_short
from storage.text import usd
from ui.data.run import RunView
from ui.elements.formatting import duration, figure, markdown_text, money, percent, short_duration
from ui.elements.widgets import TILE_PX, show_tiles


def verdict(view: RunView) -> tuple[Literal["better", "worse", "even", "waiting"], str]:
    """Return whether the run is improving, and a sentence on it; `**` marks bold text.

    The sentence says by how much, after how long and at what cost.
    """
    change = view.change
    if view.scores.empty:
        return "waiting", "The model is scored before training begins; the first figures will appear here."
    scores, iterations = view.scores["score"], int(view.scores["iteration"].iloc[-1])
    if change is None and not iterations:
        tells = "The next evaluation will show whether training helps."
        return "waiting", f"**Score before training: {scores.iloc[0]:.2f}.** {tells}"
    if change is None:  # a simulated run has no images; in others the scorer may have failed on all
        tells = f"after {iterations} iterations; no interval: no image was judged in both evaluations."
        return "waiting", f"**Score {scores.iloc[0]:.2f} → {scores.iloc[-1]:.2f}**, {tells}"
    if short := too_short(iterations):
        kind, found = "waiting", short.capitalize()
    elif not change.is_clear:
        kind, found = "even", "No clear change yet"
    else:
        kind, found = ("better", "Better") if change.mean > 0 else ("worse", "Worse")
    return kind, (
        f"**{found}: score {change.before:.2f} → {change.after:.2f} "
        f"({change.mean:+.2f} ± {change.margin:.2f})**, "
        f"{change.images} held-out images, after {iterations} iterations and "
        f"{duration(view.scores['elapsed_s'].iloc[-1])}; {money(view.paid_usd, view.is_modelled)} so far."
    )


def show_verdict(view: RunView) -> None:
    """Show the sentence in a box of matching colour."""
    kind, text = verdict(view)
    box, icon = {
        "better": (st.success, "trending_up"), "worse": (st.error, "trending_down"),
        "even": (st.info, "drag_handle"), "waiting": (st.info, "hourglass"),
    }[kind]  # fmt: skip
    box(markdown_text(text), icon=f":material/{icon}:")


def show_figures(view: RunView) -> None:
    """Show the big figures in a row; without exact matches if the reward gives no verdict."""
    done = len(view.metrics)
    planned = view.planned_iterations
    total_usd = view.paid_usd
    spot_s, reserved_s = view.paid("spot_device_s"), view.paid("reserved_device_s")
    row = st.container(horizontal=True)
    _show_measure(row, view, "score", "Score now")
    if view.gives_verdict:
        _show_measure(row, view, "exact", "Exact match now")
    show_tiles(
        ("Iterations", f"{done} of {planned}" if planned else str(done),
         percent(done / planned) if planned else None),
        ("Time at work", short_duration(view.elapsed_s),
         f"{short_duration(view.elapsed_s / done)} an iteration" if done else None,
         "With evaluations; pauses between a kill and a resume do not count."),
        ("Cost so far", usd(total_usd), f"{usd(total_usd / done)} an iteration" if done else None,
         "Every second of every device, including idle ones, at the prices in the run's settings."),
        ("Spot share", percent(spot_s / (spot_s + reserved_s)) if spot_s + reserved_s else "-",
         f"{percent(view.paid('spot_usd') / total_usd)} of the bill" if total_usd else None,
         "Spot devices' share of the paid device time."),
        row=row,
    )  # fmt: skip


def _show_measure(row: DeltaGenerator, view: RunView, name: str, title: str) -> None:
    values = view.scores[name]
    if values.empty:
        show_tiles((title, "-", None), row=row)
        return
    now, before = float(values.iloc[-1]), float(values.iloc[0])
    as_text = percent if name == "exact" else "{:.3f}".format
    row.metric(
        title, as_text(now),
        "before training" if view.scores["iteration"].iloc[-1] == 0
        else f"{now - before:+.3f} from {before:.3f}" if name == "score"
        else f"{100 * (now - before):+.0f} from {percent(before)}",
        delta_color="normal" if now != before else "off",
        delta_arrow="auto" if now != before else "off", border=True, width=TILE_PX, height="stretch",
        help="Mean over each evaluation's held-out prompts, by the weights that `spotlight export` writes.",
    )  # fmt: skip


_SIGNS = (  # title, name in `RunView.learning_courses`, format, meaning
    (
        "Ratio deviation", "ratio_deviation", figure,
        "Largest |ratio - 1| at an iteration's first update. The policy has not changed yet, so this should "
        "be 0: any remainder is a numerical difference between rollout and training.",
    ),
    (
        "KL to the reference", "kl", figure,
        "How far the policy has moved from the untouched model, in nats per denoising step on average. "
        "A steep rise with a falling score is a sign of reward hacking. Measured only if "
        "algorithm.kl_weight is above 0 or the objective compares with the reference.",
    ),
    (
        "Clip share", "clip_share", percent,
        "Share of the trained denoising steps whose gradient is clipped to 0. Near 0, updates are "
        "small; above half, most samples give no gradient: lower optimizer.learning_rate.",
    ),
    (
        "Pair accuracy", "pair_accuracy", percent,
        "Share of the trained pairs in which the policy, relative to the reference, prefers the better "
        "image. It starts at one half.",
    ),
    (
        "Prompts without signal", "zero_variance", percent,
        "Share of prompts whose samples all scored the same. They cost money but give no gradient.",
    ),
)  # fmt: skip


def show_health(view: RunView) -> None:
    """Show a row of figures that reveal unhealthy training early; `learning_charts` draws them.

    It omits figures that the objective lacks or that were not measured.
    """
    if view.metrics.empty:
        st.caption("These figures appear with the first iteration.")
        return
    courses = view.learning_courses()
    measured = {name: values[np.isfinite(values)] for name, values in courses.items()}
    show_tiles(
        *((title, as_text(float(measured[name][-1])), None, meaning)
          for title, name, as_text, meaning in _SIGNS if measured[name].size)
    )  # fmt: skip
    errors = np.nansum(view.metric("scorer_errors"))
    if errors > 0:
        st.warning(
            f"The scorer has failed on {errors:.0f} images so far. Their prompt groups are not trained on. "
            "The table `samples` has the errors.",
            icon=":material/visibility_off:",
        )
