"""The first page: does the run get better, how fast, and at what price. Live while a run goes on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from storage.config_loading import differences
from storage.errors import ConfigurationError, RunNotFoundError, StorageError
from storage.home import Home
from ui.charts import PLOT_SETTINGS, Measure, cost_chart, score_chart, state_chart
from ui.formatting import moment
from ui.headline import show_figures, show_state, show_verdict
from ui.health import show_health
from ui.images import show_images
from ui.run_view import RunView, load_images, load_overview, load_run

_REFRESH = "2s"
_COLOURS = {
    "running": "blue", "finished": "green", "failed": "red", "cancelled": "gray", "interrupted": "orange",
}  # fmt: skip


def show_page() -> None:
    """Choose a run and show it; without any, say how to start one."""
    home = Home.from_environment().path
    try:
        overview = load_overview(home)
    except StorageError as error:
        st.error(str(error), icon=":material/database_off:")
        return
    if overview.empty:
        st.fragment(_show_nothing, run_every=_REFRESH)(home)
        return
    run_id = _choose(overview)
    live = bool((overview.loc[overview["run_id"] == run_id, "status"] == "running").all())
    st.fragment(_show_run, run_every=_REFRESH if live else None)(home, run_id, live)


def _show_nothing(home: Path) -> None:
    if not load_overview(home).empty:
        st.rerun()
    st.title("No runs yet")
    st.markdown("Start one; it appears here within seconds. This one takes minutes, without a GPU:")
    st.code("spotlight train --preset glyphs", language="bash")
    st.caption(
        f"Looking in `{home}`. Runs kept elsewhere? Set `SPOTLIGHT_HOME` before starting the dashboard."
    )


def _choose(overview: pd.DataFrame) -> str:
    """The run to show: the address's `?run=`, else the newest."""
    ids = overview["run_id"].tolist()
    labels = {row["run_id"]: _label(row) for row in overview.to_dict("records")}
    wanted = st.query_params.get("run")
    chosen = st.selectbox(
        "Run", ids, index=ids.index(wanted) if wanted in ids else 0, format_func=labels.__getitem__
    )
    assert chosen is not None, "a select box with options and an index has a choice"
    st.query_params["run"] = chosen
    return chosen


def _label(row: dict) -> str:
    text = f"{row['run_id']} · {row['status']} · {moment(row['created_at'])}"
    if row["status"] == "running" or pd.isna(row["score_before"]):  # the list is older than the page below
        return text
    return f"{text} · score {row['score_before']:.2f} → {row['score_now']:.2f}"


def _show_run(home: Path, run_id: str, live: bool) -> None:
    try:
        view = load_run(home, run_id)
    except (StorageError, RunNotFoundError) as error:
        st.error(str(error), icon=":material/database_off:")
        return
    if live and view.row.status != "running":
        st.rerun()  # it has ended: the whole page again, without the refreshing
    _show_title(view)
    show_state(view)
    show_verdict(view)
    show_figures(view)
    _show_scores(view)
    st.subheader("Images before and after")
    evaluation = -1 if view.scores.empty else int(view.scores["iteration"].iloc[-1])
    show_images(load_images(home, run_id, evaluation))
    _show_costs(view)
    st.subheader("Is training healthy?")
    show_health(view)
    _show_particulars(view)


def _show_title(view: RunView) -> None:
    status = view.row.status if view.is_live or view.row.status != "running" else "interrupted"
    st.header(f"{view.row.run_id} :{_COLOURS[status]}-badge[{status}]", anchor=False)


def _show_scores(view: RunView) -> None:
    st.subheader("Score")
    measures: dict[str, Measure] = {"Graded score": "score", "Exact matches": "exact"}
    chosen = st.segmented_control(
        "Measure", list(measures), default="Graded score", key="measure", label_visibility="collapsed"
    )
    measure = measures[chosen or "Graded score"]  # a second click on the chosen one unchooses it
    left, right = st.columns(2)
    left.plotly_chart(score_chart(view, measure, "iteration"), key="score_by_iteration", config=PLOT_SETTINGS)
    right.plotly_chart(score_chart(view, measure, "time"), key="score_by_time", config=PLOT_SETTINGS)


def _show_costs(view: RunView) -> None:
    st.subheader("Cost")
    if view.cost.empty:
        st.caption("Costs appear with the first evaluation or iteration.")
        return
    left, right = st.columns(2)
    left.plotly_chart(cost_chart(view), key="cost_by_market", config=PLOT_SETTINGS)
    right.plotly_chart(state_chart(view), key="cost_by_state", config=PLOT_SETTINGS)


def _show_particulars(view: RunView) -> None:
    if not view.events.empty:
        with st.expander(f"Events ({len(view.events)})"):
            shown = view.events.assign(happened_at=view.events["happened_at"].map(moment))
            st.dataframe(shown, hide_index=True)
    with st.expander("Settings and environment"):
        try:
            changed = differences(view.row.config)
        except ConfigurationError as error:
            st.caption(str(error))
            changed = view.row.config_json
        left, right = st.columns(2)
        left.caption("Settings that differ from the defaults")
        left.json(changed)
        right.caption("Environment")
        right.json(view.row.environment)


show_page()
