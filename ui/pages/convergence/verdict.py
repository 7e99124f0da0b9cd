"""The ten-second answer: is the run getting better, and what does it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ui.data.run import RunView
from ui.elements.formatting import duration, markdown_text, percent, plain_markdown, short_duration, usd

TILE_PX = 189
"""Width of a tile: six in a row of a window 1,400 wide."""


def planned_iterations(view: RunView) -> int | None:
    """How many iterations the run is to do; None where its settings are of another version."""
    planned = view.setting("", "iterations")
    return planned if isinstance(planned, int) else None


def show_state(view: RunView) -> None:
    """Say what a person should do about a run that did not end well."""
    run_id = view.row.run_id.replace("`", "'")  # it stands in a code span
    if view.row.status == "running" and not view.alive:
        st.warning(
            f"The run's process {view.row.pid} is gone. Go on from its last checkpoint with "
            f"`spotlight resume {run_id}`",
            icon=":material/link_off:",
        )
    elif view.row.status in ("failed", "interrupted", "cancelled"):
        happened = "failed" if view.row.status == "failed" else f"was {view.row.status}"
        reason = f": {plain_markdown(view.row.error.rstrip('.'))}" if view.row.error else ""
        st.warning(f"The run {happened}{reason}{_advice(run_id, view.row.error)}", icon=":material/error:")


def _advice(run_id: str, error: str | None) -> str:
    """What goes on with the run; nothing where that would fail again, or where the error says it."""
    command = f"`spotlight resume {run_id}`"
    text = error or ""
    return "" if text.startswith("ConfigurationError") or command in text else f". Go on with {command}"


@dataclass(frozen=True)
class Verdict:
    """Whether the run is getting better.

    Attributes:
        kind: clearly better, clearly worse, or neither (yet).
        text: a sentence with its figures; `**` marks what is bold.
    """

    kind: Literal["better", "worse", "even", "waiting"]
    text: str


def verdict(view: RunView) -> Verdict:
    """Better, worse or not to tell yet, by how much, after how long, for how much."""
    if view.scores.empty:
        return Verdict(
            "waiting", "The model is scored before training begins; its first figures appear here."
        )
    before, now = view.scores["score"].iloc[0], view.scores["score"].iloc[-1]
    if view.change is None:
        return Verdict(
            "waiting",
            f"**Score before training: {before:.2f}.** The next evaluation tells whether training helps.",
        )
    change = view.change
    figures = f"score {before:.2f} → {now:.2f} ({change.mean:+.2f} ± {change.margin:.2f})"
    base = (
        f"{change.images} held-out images, after {view.scores['iteration'].iloc[-1]} iterations and "
        f"{duration(view.scores['elapsed_s'].iloc[-1])}; {usd(view.paid_usd)} so far at the set prices."
    )
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
    """Six big figures in a row."""
    done = len(view.metrics)
    planned = planned_iterations(view)
    total_usd = view.paid_usd
    spot_s, reserved_s = view.paid("spot_device_s"), view.paid("reserved_device_s")
    # Fixed widths in a row that wraps: in columns, a narrow window would cut the figures off.
    row = st.container(horizontal=True)
    with row:
        _show_measure(view, "score", "Score now")
        _show_measure(view, "exact", "Exact match now")
    show_tile(
        row, "Iterations", f"{done} of {planned}" if planned else str(done),
        percent(done / planned) if planned else None,
    )  # fmt: skip
    show_tile(
        row, "Wall-clock", short_duration(view.elapsed_s),
        f"{short_duration(view.elapsed_s / done)} an iteration" if done else None,
        "Time at work, evaluations included; breaks between a kill and a resume do not count.",
    )  # fmt: skip
    show_tile(
        row, "Cost so far", usd(total_usd), f"{usd(total_usd / done)} an iteration" if done else None,
        "Every second of every device, idle ones too, at the prices of the run's settings.",
    )  # fmt: skip
    show_tile(
        row, "Spot share", percent(spot_s / (spot_s + reserved_s)) if spot_s + reserved_s else "-",
        f"{percent(view.paid('spot_usd') / total_usd)} of the bill" if total_usd else None,
        "Spot devices' share of the paid device time.",
    )  # fmt: skip


def show_tile(
    row: DeltaGenerator, title: str, value: str, below: str | None, meaning: str | None = None
) -> None:
    """A figure of a row of tiles that are all as wide and as high as each other.

    Args:
        row: where to; a horizontal container.
        title: what it is.
        value: the figure as text; `-` where there is none.
        below: a second figure in small; None where there is none.
        meaning: what the question mark beside the title says; None leaves it out.
    """
    row.metric(
        title, value, below, delta_color="off", delta_arrow="off", border=True, width=TILE_PX,
        height="stretch", help=meaning,
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
