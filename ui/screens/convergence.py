"""The first page: does the run get better, how fast, and at what price. Live while a run goes on."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from storage.config_loading import differences
from storage.errors import ConfigurationError
from ui.charts import PLOT_SETTINGS, Measure, cost_chart, score_chart, state_chart
from ui.formatting import moment
from ui.headline import show_figures, show_verdict
from ui.health import show_health
from ui.images import show_images
from ui.run_choice import show_page
from ui.run_view import RunView, load_images


def _show_convergence(home: Path, view: RunView) -> None:
    show_verdict(view)
    show_figures(view)
    _show_scores(view)
    st.subheader("Images before and after")
    evaluation = -1 if view.scores.empty else int(view.scores["iteration"].iloc[-1])
    show_images(load_images(home, view.row.run_id, evaluation))
    _show_costs(view)
    st.subheader("Is training healthy?")
    show_health(view)
    _show_particulars(view)


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


show_page(_show_convergence)
