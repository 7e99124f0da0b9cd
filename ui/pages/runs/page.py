"""The page Runs: all runs in a table, and some of them side by side. Live while one is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from ui.charts.layout import PLOT_SETTINGS, Measure
from ui.elements.downloads import offer_downloads
from ui.elements.formatting import duration, moment, usd
from ui.elements.palette import RUN_COLOURS
from ui.elements.run_page import show_home_page
from ui.pages.runs.charts import comparison_chart, paid_chart
from ui.pages.runs.data import load_courses, load_table, shared_target, time_to_score

_AT_FIRST = 3  # runs that are compared before a choice
_MEASURES: dict[str, Measure] = {"Graded score": "score", "Exact matches": "exact"}


def _show_runs(home: Path) -> None:
    table = load_table(home)
    st.header("Runs", anchor=False)
    _show_table(table)
    _show_comparison(home, table)


def _show_table(table: pd.DataFrame) -> None:
    shown = pd.DataFrame(
        {
            "run": table["run_id"],
            "status": table["status"],
            "started": table["created_at"].map(moment),
            "iterations": table["iterations"],
            "score before": table["score_before"],
            "score now": table["score_now"],
            "best": table["score_best"],
            "exact now": table["exact_now"],
            "at work": table["wall_s"].map(duration),
            "US dollars": table["usd"],
        }
    )
    scores = ("score before", "score now", "best", "exact now")
    st.dataframe(
        shown, hide_index=True,
        column_config={
            **{name: st.column_config.NumberColumn(format="%.3f") for name in scores},
            "US dollars": st.column_config.NumberColumn(format="$%.4f"),
        },
    )  # fmt: skip
    recorded = int(table["of"].iloc[0])
    if recorded > len(table):
        st.caption(f"The latest {len(table)} of {recorded:,} runs; `spotlight runs` lists all.")
    st.caption("To look into a run, choose it at the top of any other page.")


def _show_comparison(home: Path, table: pd.DataFrame) -> None:
    st.subheader("Compare")
    scored = table.loc[table["score_now"].notna(), "run_id"].tolist()
    if not scored:
        st.info(
            "No run has been evaluated yet; the first score comes before training begins.",
            icon=":material/hourglass:",
        )
        return
    chosen = st.multiselect(
        f"Runs (at most {len(RUN_COLOURS)})", scored, default=scored[:_AT_FIRST],
        max_selections=len(RUN_COLOURS), key="compared",
    )  # fmt: skip
    if not chosen:
        st.caption("Choose the runs to compare.")
        return
    picked = st.segmented_control(
        "Measure", list(_MEASURES), default="Graded score", key="compared_measure",
        label_visibility="collapsed",
    )  # fmt: skip
    measure = _MEASURES[picked or "Graded score"]
    courses = load_courses(home, tuple(chosen))
    columns = [*st.columns(2), *st.columns(2)]
    for column, over in zip(columns, ("iteration", "time", "usd"), strict=False):
        figure = comparison_chart(courses, chosen, measure, over)
        column.plotly_chart(figure, key=f"compare-{over}", config=PLOT_SETTINGS)
    paid = table.set_index("run_id").loc[chosen].reset_index()
    columns[3].plotly_chart(paid_chart(paid), key="compare-paid", config=PLOT_SETTINGS)
    reached = _show_time_to_score(courses, chosen, measure)
    offer_downloads(
        "runs",
        {"all runs": table.drop(columns=["config", "of"]), "curves": courses, "time to the score": reached},
    )


def _show_time_to_score(courses: pd.DataFrame, chosen: list[str], measure: Measure) -> pd.DataFrame:
    st.subheader("Time to a score")
    # In hundredths and keyed by the choice: what is typed for some runs would not suit others.
    target = st.number_input(
        "Held-out score to reach", 0.0, 1.0, shared_target(courses, measure), 0.01,
        key=f"target-{measure}-{'-'.join(chosen)}", width=220,
        help="At first the best that all of these runs have reached.",
    )  # fmt: skip
    found = time_to_score(courses, chosen, measure, target)
    rows = []
    for row in found.to_dict("records"):
        if row["reached"]:
            cells = (f"{row['iteration']:.0f}", duration(row["elapsed_s"]), usd(row["usd"]))
        else:
            cells = (f"not reached (best {row['best']:.3f})", "-", "-")
        rows.append((row["run_id"], *cells))
    st.dataframe(
        pd.DataFrame(rows, columns=["run", "after iterations", "at work", "paid until then"]), hide_index=True
    )
    st.caption(
        "The first held-out evaluation at or above it. Resolution: one evaluation interval. Dollars are paid "
        "time at the prices of the settings."
    )
    return found


show_home_page(_show_runs)
