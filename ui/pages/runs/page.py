"""The page Runs: all runs in a table, and some of them side by side. Live while one of them is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from ui.charts.layout import PLOT_SETTINGS, Measure
from ui.elements.downloads import offer_downloads
from ui.elements.formatting import MODELLED_BADGE, duration, money, plain_markdown
from ui.elements.palette import RUN_COLOURS
from ui.elements.run_page import show_home_page
from ui.pages.runs.charts import comparison_chart, paid_chart
from ui.pages.runs.data import (
    first_compared,
    load_courses,
    load_table,
    of_one_scale,
    shared_target,
    time_to_score,
)
from ui.pages.runs.notes import show_notes
from ui.pages.runs.table import show_filters, show_table, shows_archived

_AT_FIRST = 3  # runs that are compared before a choice
_MEASURES: dict[str, Measure] = {"Graded score": "score", "Exact matches": "exact"}


def _show_runs(home: Path) -> None:
    table = load_table(home, archived=shows_archived())
    st.header("Runs", anchor=False)
    shown, filtered_by = show_filters(table)
    show_table(shown)
    show_notes(home, table)
    _show_comparison(home, shown, filtered_by)


def _show_comparison(home: Path, table: pd.DataFrame, filtered_by: str) -> None:
    st.subheader("Compare")
    scored = table.loc[table["score_now"].notna(), "run_id"].tolist()
    if not scored and filtered_by:
        st.caption("No run that is listed has been evaluated.")
        return
    if not scored:
        st.info(
            "No run has been evaluated yet; the first score comes before training begins.",
            icon=":material/hourglass:",
        )
        return
    chosen = st.multiselect(
        f"Runs (at most {len(RUN_COLOURS)})", scored, default=first_compared(table, _AT_FIRST),
        max_selections=len(RUN_COLOURS), key=f"compared{filtered_by}",
    )  # fmt: skip
    if not chosen:
        st.caption("Choose the runs to compare.")
        return
    chosen, others = of_one_scale(table, chosen)
    if others:
        st.info(
            f"Not drawn: {plain_markdown(', '.join(others))}. Another reward judges them, or they began from "
            f"another base model, so their scores do not compare with those of {plain_markdown(chosen[0])}; "
            "choose them by themselves.",
            icon=":material/info:",
        )
    picked = st.segmented_control(
        "Measure", list(_MEASURES), default="Graded score", key="compared_measure",
        label_visibility="collapsed",
    )  # fmt: skip
    measure = _MEASURES[picked or "Graded score"]
    courses = load_courses(home, tuple(chosen))
    columns = [*st.columns(2), *st.columns(2)]
    modelled = set(table.loc[table["modelled"].astype(bool), "run_id"])
    for column, over in zip(columns, ("iteration", "time", "usd"), strict=False):
        figure = comparison_chart(courses, chosen, measure, over, modelled)
        column.plotly_chart(figure, key=f"compare-{over}", config=PLOT_SETTINGS)
    paid = table.set_index("run_id").loc[chosen].reset_index()
    columns[3].plotly_chart(paid_chart(paid), key="compare-paid", config=PLOT_SETTINGS)
    if modelled & set(chosen):
        names = plain_markdown(", ".join(run_id for run_id in chosen if run_id in modelled))
        st.caption(f"{MODELLED_BADGE} No device was rented for {names}: dollars are time at set prices.")
    reached = _show_time_to_score(courses, chosen, measure, modelled)
    listed = table.drop(columns=["config", "environment", "of"])
    offer_downloads("runs", {"runs": listed, "curves": courses, "time to the score": reached})


def _show_time_to_score(
    courses: pd.DataFrame, chosen: list[str], measure: Measure, modelled: set[str]
) -> pd.DataFrame:
    st.subheader("Time to a score")
    # In hundredths and keyed by the choice: a value typed for some runs would not suit others.
    target = st.number_input(
        "Held-out score to reach", 0.0, 1.0, shared_target(courses, measure), 0.01,
        key=f"target-{measure}-{'-'.join(chosen)}", width=220,
        help="At first the best that all of these runs have reached.",
    )  # fmt: skip
    found = time_to_score(courses, chosen, measure, target)
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
    st.dataframe(
        pd.DataFrame(rows, columns=["run", "after iterations", "training for", "paid for it"]),
        hide_index=True,
    )
    st.caption(
        "The first held-out evaluation at or above it. Resolution: one evaluation interval. Time and dollars "
        "count from where training began, so without the start and the evaluation before it."
    )
    return found


show_home_page(_show_runs)
