"""The state of a live run: its phases, its expected end, and the tail of its log."""

from __future__ import annotations

import time

import streamlit as st

from ui.data.run import RunView
from ui.elements.formatting import short_duration

_LINES = 30
_RECENT = 10  # iterations that the prediction looks back on
_NAMES = {
    "start": "starting", "rollout": "rolling out", "reward": "scoring", "train": "training",
    "explore": "exploring", "redraft": "drafting again", "evaluate": "evaluating", "commit": "saving",
    "explore_wait": "waiting for exploration",
}  # fmt: skip


def show_live(view: RunView, now: float | None = None) -> None:
    """Show the progress of a live run, its current phases, and the latest lines of its log.

    Args:
        view: the run.
        now: Unix seconds; the present by default.
    """
    now = time.time() if now is None else now
    done, planned = len(view.metrics), view.planned_iterations
    parts = [f"Iteration {done} of {planned}" if planned else f"Iteration {done}", *_phases(view, now)]
    left_s = seconds_left(view, now)
    if left_s is not None:
        parts.append(f"about {short_duration(left_s)} left")
    st.progress(min(1.0, done / planned) if planned else 0.0, text=" · ".join(parts))
    messages = view.activity.messages[-_LINES:]
    if messages:
        with st.expander("Log"):
            lines = [f"{time.strftime('%H:%M:%S', time.localtime(m.at))}  {m.text}" for m in messages]
            st.code("\n".join(lines), language=None, height=240)


def seconds_left(view: RunView, now: float) -> float | None:
    """Return the predicted seconds to the end; None before the first iteration, or if the length is unknown.

    The prediction uses recent iterations with their evaluations; breaks of the run do not count.
    """
    planned, done = view.planned_iterations, len(view.metrics)
    if not planned or not done:
        return None
    ended_s = view.metrics["elapsed_s"].to_numpy(dtype=float)[-_RECENT - 1 :]
    lengths = view.metric("iteration_s")[-_RECENT:]
    each_s = (ended_s[-1] - ended_s[0]) / (len(ended_s) - 1) if len(ended_s) > 1 else float(lengths.mean())
    since_s = max(0.0, now - float(view.metrics["ended_at"].iloc[-1]))
    return max(0.0, each_s * (planned - done) - since_s) if each_s == each_s else None


def _phases(view: RunView, now: float) -> list[str]:
    """Return the current phases and their time so far; empty without a log."""
    return [
        f"{_NAMES.get(name, name)} for {short_duration(max(0.0, now - began_at))}"
        for name, began_at in view.activity.phases.items()
    ]
