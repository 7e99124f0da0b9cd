"""The short answers on whether the run gets better, its cost, and the health of its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import streamlit as st

from storage.record.results import too_short
from ui.data.run import RunView, gives_verdict
from ui.elements.formatting import duration, figure, markdown_text, money, percent, short_duration, usd
from ui.elements.widgets import TILE_PX, show_tiles


@dataclass(frozen=True)
class Verdict:
    """The verdict on whether the run is getting better.

    Attributes:
        kind: clearly better, clearly worse, or neither (yet).
        text: a sentence with its figures; `**` marks bold text.
    """

    kind: Literal["better", "worse", "even", "waiting"]
    text: str


def verdict(view: RunView) -> Verdict:
    """Return the verdict: better, worse or not clear yet, by how much, after how long, at what cost."""
    if view.scores.empty:
        return Verdict(
            "waiting", "The model is scored before training begins; its first figures appear here."
        )
    if view.change is None:
        before = view.scores["score"].iloc[-1]
        return Verdict(
            "waiting",
            f"**Score before training: {before:.2f}.** The next evaluation tells whether training helps.",
        )
    change = view.change
    figures = f"score {change.before:.2f} → {change.after:.2f} ({change.mean:+.2f} ± {change.margin:.2f})"
    base = (
        f"{change.images} held-out images, after {view.scores['iteration'].iloc[-1]} iterations and "
        f"{duration(view.scores['elapsed_s'].iloc[-1])}; {money(view.paid_usd, view.is_modelled)} so far."
    )
    if short := too_short(int(view.scores["iteration"].iloc[-1])):
        return Verdict("waiting", f"**{short.capitalize()}: {figures}**, {base}")
    if not change.is_clear:
        return Verdict("even", f"**No clear change yet: {figures}**, {base}")
    if change.mean > 0:
        return Verdict("better", f"**Better: {figures}**, {base}")
    return Verdict("worse", f"**Worse: {figures}**, {base}")


def show_verdict(view: RunView) -> None:
    """Show the sentence in a box of its colour."""
    boxes = {
        "better": (st.success, ":material/trending_up:"),
        "worse": (st.error, ":material/trending_down:"),
        "even": (st.info, ":material/drag_handle:"),
        "waiting": (st.info, ":material/hourglass:"),
    }
    found = verdict(view)
    box, icon = boxes[found.kind]
    box(markdown_text(found.text), icon=icon)


def show_figures(view: RunView) -> None:
    """Show the big figures in a row; without exact matches if the reward gives no verdict."""
    done = len(view.metrics)
    planned = view.planned_iterations
    total_usd = view.paid_usd
    spot_s, reserved_s = view.paid("spot_device_s"), view.paid("reserved_device_s")
    row = st.container(horizontal=True)
    with row:
        _show_measure(view, "score", "Score now")
        if gives_verdict(view):
            _show_measure(view, "exact", "Exact match now")
    show_tiles(
        ("Iterations", f"{done} of {planned}" if planned else str(done),
         percent(done / planned) if planned else None),
        ("Wall-clock", short_duration(view.elapsed_s),
         f"{short_duration(view.elapsed_s / done)} an iteration" if done else None,
         "Time at work, evaluations included; breaks between a kill and a resume do not count."),
        ("Cost so far", usd(total_usd), f"{usd(total_usd / done)} an iteration" if done else None,
         "Every second of every device, idle ones too, at the prices of the run's settings."),
        ("Spot share", percent(spot_s / (spot_s + reserved_s)) if spot_s + reserved_s else "-",
         f"{percent(view.paid('spot_usd') / total_usd)} of the bill" if total_usd else None,
         "Spot devices' share of the paid device time."),
        row=row,
    )  # fmt: skip


def _show_measure(view: RunView, name: str, title: str) -> None:
    values = view.scores[name]
    if values.empty:
        st.metric(title, "-", border=True, width=TILE_PX, height="stretch")
        return
    now, before = float(values.iloc[-1]), float(values.iloc[0])
    as_text = percent if name == "exact" else "{:.3f}".format
    st.metric(
        title, as_text(now),
        f"{now - before:+.3f} from {before:.3f}" if name == "score"
        else f"{100 * (now - before):+.0f} from {percent(before)}",
        delta_color="normal" if now != before else "off",
        delta_arrow="auto" if now != before else "off", border=True, width=TILE_PX, height="stretch",
        help="Mean over the held-out prompts, with the moving average of the weights.",
    )  # fmt: skip


_SIGNS = (  # title, name in `RunView.learning_courses`, format, meaning
    (
        "Ratio deviation", "ratio_deviation", figure,
        "Largest |ratio - 1| at an iteration's first update. The policy has not changed yet, so this should "
        "be 0: what is left is a numerical difference between rollout and training.",
    ),
    (
        "KL to the reference", "kl", figure,
        "How far the policy has moved from the model before training, in nats, as the mean of a denoising "
        "step. A steep rise with a falling score is a sign of reward hacking. Measured only where "
        "algorithm.kl_weight is above 0 or the objective compares with the reference.",
    ),
    (
        "Clip share", "clip_share", percent,
        "Share of the trained denoising steps whose gradient the clip range cuts off. Near 0 the steps are "
        "small; above half, most of the samples give no gradient: lower optimizer.learning_rate.",
    ),
    (
        "Pair accuracy", "pair_accuracy", percent,
        "Share of the trained pairs whose better image the policy has raised above the worse one, compared "
        "with the reference. It begins at a half.",
    ),
    (
        "Prompts without signal", "zero_variance", percent,
        "Share of prompts whose samples all scored the same. They give no gradient, but were paid for.",
    ),
)  # fmt: skip


def show_health(view: RunView) -> None:
    """Show the figures that reveal unhealthy training early, in a row; `learning_charts` draws them.

    A figure that the objective does not have, or that was not measured, is left out.
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
            f"The scorer failed on {errors:.0f} images so far. Their prompt groups are not trained on. "
            "The errors are in the table `samples`.",
            icon=":material/visibility_off:",
        )
