"""The section Compare of the page Runs: runs side by side, by any figure, with settings and images.

The chosen runs and the figure are kept in the address (`?compare=RUN,RUN&figure=NAME`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from storage.evaluations.strategies import in_words
from storage.home import Home
from ui.charts.layout import AXES, Measure
from ui.data.run import metric_names, with_verdicts
from ui.elements.formatting import MODELLED_BADGE, duration, money, plain_markdown
from ui.elements.image_grid import compared_html
from ui.elements.palette import RUN_COLOURS
from ui.elements.widgets import PLOT_SETTINGS, offer_downloads, show_frame, show_rows
from ui.pages.runs import data

_AT_FIRST = 3  # runs that are compared before a choice
_PICTURED = 6  # prompts
_MEASURES: dict[str, Measure] = {"held-out score": "score", "held-out exact matches": "exact"}
_COMPARED, _FIGURE = "compare", "figure"  # in the address and, as pages empty it, the session


def show_comparison(home: Home, table: pd.DataFrame, filtered_by: str) -> None:
    """Let the user choose rows of `load_table`; `filtered_by` is the key of that choice."""
    st.subheader("Compare")
    scored = table.loc[table["score_now"].notna(), "run_id"].tolist()
    if not scored:
        waiting = "No listed run has been evaluated yet; the first score comes before training begins."
        st.info(waiting, icon=":material/hourglass:")
        return
    chosen = _choose_runs(table, scored, filtered_by)
    if not chosen:
        st.caption("Choose the runs to compare.")
        return
    chosen, others = data.of_one_scale(table, chosen)
    if others:
        st.info(
            f"Not drawn: {plain_markdown(', '.join(others))}. They use another reward or began from "
            "another base model, so their scores are not comparable with those of "
            f"{plain_markdown(chosen[0])}; compare them separately.",
            icon=":material/info:",
        )
    rows = table.set_index("run_id").loc[chosen].reset_index()
    compared = data.load_compared(home, tuple(chosen))
    _show_answer(compared.answer)
    reached = _show_courses(compared, rows)
    if len(chosen) > 1:
        st.subheader("Settings that differ")
        differing = data.differing_settings(table, chosen)
        if differing.empty:
            st.caption("These runs have the same settings.")
        else:
            show_frame(differing)
        st.subheader("Images side by side")
        images = data.load_pictures(home, tuple(chosen), _PICTURED)
        if images.empty:
            st.caption("These runs share no picture of a held-out prompt and seed.")
        else:
            st.html(compared_html(with_verdicts(images, any(rows["verdicts"]))))
            st.caption("Held-out prompts at each run's latest evaluation with pictures, with the same seeds.")
    listed = table.drop(columns=["config", "environment", "of"])
    offer_downloads("runs", {"runs": listed, "curves": compared.courses, "time to the score": reached})


def _choose_runs(table: pd.DataFrame, scored: Sequence[str], filtered_by: str) -> list[str]:
    named = [run_id for run_id in _kept(_COMPARED).split(",") if run_id]
    known = [run_id for run_id in dict.fromkeys(named) if run_id in scored][: len(RUN_COLOURS)]
    key = f"compared{filtered_by}"
    if key not in st.session_state and len(known) < len(named):
        missing = ", ".join(run_id for run_id in named if run_id not in known)
        st.caption(f"Not among the listed runs with a score: {plain_markdown(missing)}.")
    first = known or data.first_compared(table, _AT_FIRST)
    st.session_state[key] = [run_id for run_id in st.session_state.get(key, first) if run_id in scored]
    chosen = st.multiselect(
        f"Runs (at most {len(RUN_COLOURS)})", scored, max_selections=len(RUN_COLOURS), key=key
    )
    _keep(_COMPARED, ",".join(chosen))
    return chosen


def _show_answer(answer: dict[str, Any] | None) -> None:
    if answer is None:
        return
    sentences = [plain_markdown(sentence) for sentence in in_words(answer)]
    found = [one for each in answer["strategies"].values() for one in each["at_equal"].values()]
    if found:
        box = st.success if any(one["is_clear"] for one in found) else st.info
        first = [sentences.pop(0) for _ in answer["strategies"]]
        box("**Does exploration help?**  \n" + "  \n".join(first), icon=":material/balance:")
    for sentence in sentences:
        st.caption(sentence)


def _show_courses(compared: data.Compared, rows: pd.DataFrame) -> pd.DataFrame:
    chosen, modelled = rows["run_id"].tolist(), set(rows.loc[rows["modelled"].astype(bool), "run_id"])
    verdicts = any(rows["verdicts"])
    names = [*list(_MEASURES)[: 1 + verdicts], *metric_names(compared.metrics, verdicts)]
    row = st.container(horizontal=True, vertical_alignment="bottom")
    wanted = st.session_state.get("compared_figure", _kept(_FIGURE))
    st.session_state["compared_figure"] = wanted if wanted in names else names[0]
    name = row.selectbox("Figure", names, key="compared_figure", width=320)
    _keep(_FIGURE, name)
    over = row.segmented_control("Over", list(AXES), default="Iterations", key="compared_axis")
    measure = _MEASURES.get(name)
    drawn = compared.metrics if measure is None else compared.courses
    figure = data.comparison_chart(drawn, chosen, measure or name, name, AXES[over or "Iterations"], modelled)
    left, right = st.columns([2, 1])
    left.plotly_chart(figure, key="compare", config=PLOT_SETTINGS)
    right.plotly_chart(data.paid_chart(rows), key="compare-paid", config=PLOT_SETTINGS)
    if modelled:
        named = plain_markdown(", ".join(run_id for run_id in chosen if run_id in modelled))
        st.caption(f"{MODELLED_BADGE} No device was rented for {named}: dollars are time at set prices.")
    return _show_time_to_score(compared.courses, chosen, measure or "score", modelled)


def _show_time_to_score(
    courses: pd.DataFrame, chosen: list[str], measure: Measure, modelled: Collection[str]
) -> pd.DataFrame:
    st.subheader("Time to a score")
    # In hundredths, and keyed by the choice: a value typed for some runs may not suit others.
    target = st.number_input(
        "Held-out score to reach", 0.0, 1.0, data.shared_target(courses, measure), 0.01,
        key=f"target-{measure}-{'-'.join(chosen)}", width=220,
        help="Initially the best score that all of these runs reached.",
    )  # fmt: skip
    found = data.time_to_score(courses, chosen, measure, target)
    rows = []
    for row in found.to_dict("records"):
        if row["reached"] and row["iteration"] == 0:
            cells = ("before training", "-", "-")
        elif row["reached"]:
            paid = money(row["usd"], row["run_id"] in modelled)
            cells = (f"{row['iteration']:.0f}", duration(row["elapsed_s"]), paid)
        else:
            cells = (f"not reached (best {row['best']:.3f})", "-", "-")
        rows.append((row["run_id"], *cells))
    show_rows(["run", "after iterations", "training for", "paid for it"], rows)
    st.caption(
        "The first held-out evaluation at or above it, to the nearest evaluation. Time and dollars count "
        "from the start of training, without the startup and the evaluation before it."
    )
    return found


def _kept(name: str) -> str:
    """Return a choice from the address, or from the session; empty for none."""
    value: Any = st.query_params.get(name) or st.session_state.get(f"runs_{name}")
    return value or ""


def _keep(name: str, value: str) -> None:
    st.session_state[f"runs_{name}"] = value
    if st.query_params.get(name, "") != value:
        st.query_params[name] = value
