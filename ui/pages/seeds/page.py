"""The page Seeds: whether drafts by stale weights rank the seeds correctly, and where the drafts go."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from ui.charts.layout import PLOT_SETTINGS
from ui.data.methods import explores, gives_verdict, least_spearman, with_verdicts
from ui.data.run import RunView
from ui.elements.downloads import offer_downloads
from ui.elements.image_grid import show_best_and_worst
from ui.elements.run_page import show_page
from ui.pages.seeds.charts import (
    MAP_PROMPTS,
    draft_map,
    pair_chart,
    rank_chart,
    spread_chart,
    success_chart,
)
from ui.pages.seeds.data import SeedsView, load_pairs, load_pictures, load_seeds
from ui.pages.seeds.verdict import (
    show_alerts,
    show_decision,
    show_plain,
    show_seed_figures,
    show_seed_verdict,
)


def _show_seeds(home: Path, view: RunView) -> None:
    seeds = load_seeds(home, view)
    has_drafts = bool((seeds.drafts["drafts"] > 0).any())
    if not explores(view) and not has_drafts:
        show_plain()
        return
    show_alerts(seeds.alerts)
    show_decision(view, seeds.decisions)
    if view.metrics.empty:
        st.info(
            "The first figures come with the first iteration; stale drafts are compared from the second on.",
            icon=":material/hourglass:",
        )
        return
    show_seed_verdict(view)
    show_seed_figures(view)
    _show_staleness(home, view, seeds)
    _show_spread_and_budget(view, seeds, has_drafts)
    st.subheader("Best and worst seeds of a prompt")
    _show_pictures(home, view, seeds)
    offer_downloads(
        view.row.run_id, {"drafts by prompt": seeds.drafts, "figures of each iteration": view.metrics}
    )


def _show_staleness(home: Path, view: RunView, seeds: SeedsView) -> None:
    st.subheader("Stale against fresh")
    left, right = st.columns(2)
    with left:
        _show_pairs(home, view, seeds)
    right.plotly_chart(rank_chart(view, least_spearman(view)), key="ranks", config=PLOT_SETTINGS)


def _show_pairs(home: Path, view: RunView, seeds: SeedsView) -> None:
    if seeds.pairs.counts.empty:
        st.caption("Pairs appear with the first iteration whose drafts are older than its rollout's weights.")
        return
    above = st.empty()
    # Up to the planned end, not the present one: a growing slider forgets the choice.
    last = max(view.planned_iterations or 0, *view.metrics["iteration"].tolist())
    first, until = 1, last
    if last > 1:
        first, until = st.slider("Iterations", 1, last, (1, last), key="pair_iterations")
    chosen_all = (first, until) == (1, last)
    pairs = seeds.pairs if chosen_all else load_pairs(home, view, first, until)
    if pairs.counts.empty:
        above.caption("No seed of these iterations has both a stale and a fresh score.")
        return
    above.plotly_chart(pair_chart(pairs.counts), key="pairs", config=PLOT_SETTINGS)
    recorded = int(view.metrics["iteration"].between(first, until).sum())
    if recorded > len(pairs.iterations):
        st.caption(f"Seeds of {len(pairs.iterations)} of these {recorded:,} iterations, evenly spread.")


def _show_spread_and_budget(view: RunView, seeds: SeedsView, has_drafts: bool) -> None:
    st.subheader("Where the drafts went, and their effect")
    left, right = st.columns(2)
    if any(name in view.metrics for name in ("spread_random", "spread_kept", "spread_rollout")):
        left.plotly_chart(spread_chart(view), key="spread", config=PLOT_SETTINGS)
    else:
        left.caption("This run has not measured the spread of its groups.")
    if not has_drafts:
        right.caption("No drafts are recorded yet.")
        return
    if gives_verdict(view):
        right.plotly_chart(success_chart(seeds.drafts), key="success", config=PLOT_SETTINGS)
    prompts = seeds.drafts.loc[seeds.drafts["drafts"] > 0, "prompt_id"].nunique()
    drawn = draft_map(seeds.drafts, gives_verdict(view))
    if drawn is None:
        st.caption(f"{prompts} prompts were drafted, most of them in one iteration only: no map of them.")
    else:
        st.plotly_chart(drawn, key="drafts", config=PLOT_SETTINGS)
    if drawn is not None and prompts > MAP_PROMPTS:
        st.caption(f"The {MAP_PROMPTS} most drafted of {prompts} prompts.")
    looked_at = len(set(seeds.drafts["iteration"].tolist()))
    if looked_at < len(view.metrics):
        st.caption(f"Drafts of {looked_at} of {len(view.metrics):,} iterations, evenly spread.")


def _show_pictures(home: Path, view: RunView, seeds: SeedsView) -> None:
    if seeds.prompts.empty:
        st.caption("Pictures appear with the first iteration.")
        return
    labels = dict(zip(seeds.prompts["prompt_id"].tolist(), seeds.prompts["prompt"].tolist(), strict=True))
    newest = dict(zip(seeds.prompts["prompt_id"].tolist(), seeds.prompts["iteration"].tolist(), strict=True))
    prompt_id = st.selectbox(
        "Prompt", list(labels), format_func=lambda number: f"{labels[number]} (#{number})",
        key=f"prompt-{view.row.run_id}",
    )  # fmt: skip
    assert prompt_id is not None, "a select box with options and an index has a choice"
    images = load_pictures(home, view.row.run_id, prompt_id, newest[prompt_id])
    show_best_and_worst(with_verdicts(images, gives_verdict(view)))


show_page(_show_seeds)
