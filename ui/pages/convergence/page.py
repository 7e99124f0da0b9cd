"""The page Convergence: whether the run improves, how fast, and at what price. Live while the run is."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from storage.home import Home
from storage.record.queries.images import images_before_after
from storage.record.run_store import RunStore
from ui.charts.layout import AXES, Measure
from ui.data.run import QualityView, RunView, load, metric_names, read_quality, sources_of, with_verdicts
from ui.elements.formatting import moment, plain_markdown
from ui.elements.image_grid import gallery_html
from ui.elements.run_page import show_page
from ui.elements.widgets import PLOT_SETTINGS, offer_downloads, show_frame, show_in_pairs
from ui.pages.convergence import charts
from ui.pages.convergence.verdict import show_figures, show_health, show_verdict

_MEASURES: dict[str, Measure] = {"Graded score": "score", "Exact matches": "exact"}


def _show_convergence(view: RunView) -> None:
    show_verdict(view)
    show_figures(view)
    until = view.newest.evaluation_at
    quality = load(read_quality, view, until=until)
    measure = _show_scores(view, quality)
    courses = _show_seeds_of_runs(view, measure)
    st.subheader("Images before and after")
    images = load(images_before_after, view, until=until)
    if images.empty:
        st.caption("Images appear with the first evaluation.")
    else:
        if images["iteration_before"].iloc[0] == images["iteration_after"].iloc[0]:
            note = "The untouched model's images; the next evaluation adds the trained model's beside them."
            st.caption(note)
        st.html(gallery_html(with_verdicts(images, view.gives_verdict), sources_of(view, images)))
    if quality.verdict is not None and quality.figures:
        st.subheader("Image quality")
        with st.container(key="pairs-quality"):
            show_in_pairs(charts.quality_charts(quality), "quality")
        show_frame(charts.quality_table(quality.verdict), "%.4f")
        st.caption("Held-out images against the untouched model's, with the same prompts and seeds.")
    with st.container(key="pairs-part"):
        show_in_pairs(charts.part_charts(view, quality), "part")
    st.subheader("Is training healthy?")
    show_health(view)
    with st.container(key="pairs-learning"):  # a name for `narrow.css`
        show_in_pairs(charts.learning_charts(view), "learning")
    _show_metrics(view)
    _show_particulars(view)
    offer_downloads(
        view.row.run_id,
        {
            "held-out scores": view.scores, "figures of each iteration": view.metrics, "run seeds": courses,
            "image quality": quality.means,
        },
    )  # fmt: skip


def _show_scores(view: RunView, quality: QualityView) -> Measure:
    st.subheader("Score")
    row, measure = st.container(horizontal=True), "Graded score"
    if view.gives_verdict:
        measure = row.segmented_control(
            "Measure", list(_MEASURES), default=measure, key="measure", label_visibility="collapsed"
        )
    over = row.segmented_control(
        "Over", list(AXES), default="Iterations", key="score_axis", label_visibility="collapsed"
    )
    # A second click deselects the choice.
    chosen = _MEASURES[measure or "Graded score"]
    chart = charts.score_chart(view, chosen, AXES[over or "Iterations"], quality.judges)
    st.plotly_chart(chart, key="score", config=PLOT_SETTINGS)
    return chosen


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_seeds(home: Home, run_id: str, evaluation_at: float) -> tuple[dict[int, str], pd.DataFrame]:
    """Return the runs of other seeds; `evaluation_at` is part of the cache's key."""
    return charts.read_seed_courses(RunStore(home), run_id)


def _show_seeds_of_runs(view: RunView, measure: Measure) -> pd.DataFrame:
    """Show the interval over run seeds if several runs differ only in the seed; return their scores."""
    seeds, courses = _load_seeds(view.home, view.row.run_id, view.newest.evaluation_at)
    if len(set(courses["run_id"].tolist())) < 2:
        st.caption(
            "Only one run seed. To see how much the curve depends on it, start the same run with another "
            "`--set seed=`; the interval over seeds then appears here."
        )
        return pd.DataFrame()
    drawn = charts.interval_chart(courses, seeds, measure)
    st.plotly_chart(drawn, key="score_by_seed", config=PLOT_SETTINGS)
    names = ", ".join(f"{plain_markdown(run_id)} (seed {seed})" for seed, run_id in seeds.items())
    st.caption(f"Runs that differ only in the seed: {names}. The mean covers shared evaluations.")
    return courses


def _show_particulars(view: RunView) -> None:
    if not view.events.empty:
        with st.expander(f"Events ({len(view.events)})"):
            show_frame(view.events.assign(happened_at=view.events["happened_at"].map(moment)))
    with st.expander("Settings and environment"):
        changed, refused = view.changed_settings()
        if refused:
            st.caption(plain_markdown(refused))
        left, right = st.columns(2)
        left.caption("Settings that differ from the defaults")
        left.json(changed)
        right.caption("Environment")
        right.json(view.row.environment)


def _show_metrics(view: RunView) -> None:
    st.subheader("Metrics")
    names = metric_names(view.metrics, view.gives_verdict)
    if not names:
        st.caption("Metrics appear with the first iteration.")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom")
    chosen = row.multiselect("Metrics of the iterations", names, key="metrics", placeholder="Choose metrics")
    smoothing = row.slider(
        "Smoothing", 0.0, 0.95, 0.0, 0.05, key="metrics_smoothing", width=220,
        help="Weight of the past in an exponential moving average; 0 shows raw figures.",
    )  # fmt: skip
    over = row.segmented_control("Along", list(AXES), default="Iterations", key="metrics_axis")
    axis = AXES[over or "Iterations"]
    show_in_pairs([charts.metric_chart(view, name, smoothing, axis) for name in chosen], "metric")


show_page(_show_convergence)
