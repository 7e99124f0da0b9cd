"""The page Seeds: whether drafts from stale weights rank seeds correctly, and where drafts go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import streamlit as st

from storage.record.queries.seeds import best_and_worst
from storage.record.results import VarianceGain, variance_gain
from ui.data.run import RunView, load, with_verdicts
from ui.elements.formatting import figure as as_figure
from ui.elements.formatting import moment, percent, plain_markdown, short_duration
from ui.elements.image_grid import best_and_worst_html
from ui.elements.run_page import show_page
from ui.elements.widgets import PLOT_SETTINGS, offer_downloads, show_tiles
from ui.pages.seeds import charts
from ui.pages.seeds.charts import MAP_PROMPTS, SeedsView

_RECENT = 20  # iterations that the verdict covers
_SHOWN_ALERTS = 3
_PICTURED_ITERATIONS = 8


def _show_plain() -> None:
    st.info(
        "**This run does not explore**: it uses each prompt's first seeds, so there is nothing to compare "
        "here.",
        icon=":material/grain:",
    )
    st.markdown(
        "With exploration, spot devices draft many seeds for the next iteration's prompts while the reserved "
        "device trains. The seeds whose scores differ most are then rolled out, because equal scores give no "
        "gradient. The drafts use weights that are one iteration old; this page shows whether they still "
        "rank the seeds correctly. To start such a run:"
    )
    st.code("spotlight train --preset glyphs --set exploration.strategy=stale", language="bash")


def _show_events(view: RunView, alerts: pd.DataFrame, decisions: pd.DataFrame) -> None:
    """Show the latest alerts, and what the strategy decided last."""
    rows = alerts.head(_SHOWN_ALERTS).to_dict("records")
    lines = [f"{moment(row['happened_at'])}: {plain_markdown(row['message'])}" for row in rows]
    if len(alerts) > len(rows):
        lines.append(f"and {len(alerts) - len(rows)} earlier, among the events on the page Convergence")
    if lines:
        st.warning("\n\n".join(lines), icon=":material/notification_important:")
    strategy = view.setting("exploration", "strategy")
    for message in decisions["message"]:
        st.info(f"`exploration.strategy={strategy}`: {plain_markdown(message)}", icon=":material/alt_route:")


def _show_seed_verdict(view: RunView) -> None:
    gain = ""
    if measured := _gain(view):
        gain = f"ept groups have {measured.ratio:.1f}x the variance of random ones."
        gain = f"K{gain}" if measured.rolled_out else f"By their drafts, k{gain}"
    ranks = view.measured("spearman", _RECENT)
    if not ranks.size and view.measured("off_policy_samples").any():
        st.info(
            "**Trained on its drafts**: they were not rolled out again, so no newer scores show how well "
            f"their weights rank seeds. {gain}",
            icon=":material/grain:",
        )
        return
    if not ranks.size:
        st.info(
            "**Not known yet whether the last iteration's weights rank seeds well**: no iteration has "
            f"compared their scores with newer ones. {gain}",
            icon=":material/hourglass:",
        )
        return
    median, limit = float(np.median(ranks)), view.rank_limit
    over = f"median of {len(ranks)} iterations" if len(ranks) > 1 else "one iteration"
    found = f"rank correlation {median:.2f}** ({over})"
    box, icon, text = st.success, "check_circle", f"still rank seeds well: {found}"
    if median < limit:
        box, icon, text = st.error, "trending_down", f"rank seeds badly: {found}, below {limit:g}"
    elif float(ranks[-1]) < limit:
        now = f"now {ranks[-1]:.2f}, below {limit:g}"
        box, icon, text = st.warning, "warning", f"ranked seeds well, but not lately: {found}, {now}"
    box(f"**The last iteration's weights {text}. {gain}", icon=f":material/{icon}:")


def _show_seed_figures(view: RunView) -> None:
    drafts, unexplored = view.measured("drafts"), view.measured("prompts_unexplored")
    gain = _gain(view)
    show_tiles(
        ("Drafts", f"{drafts.sum():,.0f}" if drafts.size else "-",
         f"{drafts.mean():.0f} an iteration" if drafts.size else None,
         "Images generated to choose seeds, without those of the rollout."),
        ("Kept overlap", *_latest_and_median(view, "kept_overlap", percent),
         "Share of the seeds chosen by stale drafts that fresh scores would also choose."),
        ("Draft error", *_latest_and_median(view, "draft_error", as_figure),
         "Mean distance between a seed's draft score and its rollout score."),
        ("Variance gain", f"{gain.ratio:.2f}×" if gain else "-",
         ("as rolled out" if gain.rolled_out else "by drafts") if gain else None,
         "Variance of a prompt group's scores: kept over random groups, in all iterations."),
        ("Wait for exploration", *_latest_and_median(view, "explore_wait_s", short_duration),
         "Time after training that the devices waited for the next iteration's seeds."),
        ("Prompts without drafts", f"{unexplored[-1]:.0f}" if unexplored.size else "-",
         f"{unexplored.sum():.0f} in all iterations" if unexplored.size else None,
         "Prompts rolled out with their first seeds because no drafts of them were ready."),
    )  # fmt: skip


def _latest_and_median(view: RunView, name: str, as_text: Callable[[float], str]) -> tuple[str, str | None]:
    values = view.measured(name)
    latest = as_text(float(values[-1])) if values.size else "-"
    return latest, f"{as_text(float(np.median(values)))} median" if values.size > 1 else None


def _gain(view: RunView) -> VarianceGain | None:
    names = ("spread_random", "spread_rollout", "spread_kept")
    return variance_gain(zip(*(view.metric(name).tolist() for name in names), strict=True))


def _show_seeds(view: RunView) -> None:
    seeds = load(charts.read_seeds, view)
    has_drafts = bool((seeds.drafts["drafts"] > 0).any())
    if view.simulated is not None:
        st.info("A simulated run has no drafts and no scores of seeds to show.", icon=":material/grain:")
        return
    if not view.explores and not has_drafts:
        _show_plain()
        return
    _show_events(view, seeds.alerts, seeds.decisions)
    if view.metrics.empty:
        st.info(
            "Figures appear with the first iteration, comparisons of stale drafts with the second.",
            icon=":material/hourglass:",
        )
        return
    _show_seed_verdict(view)
    _show_seed_figures(view)
    if not seeds.pairs.empty or not view.measured("off_policy_samples").any():
        st.subheader("Stale against fresh")
        left, right = st.columns(2)
        with left:
            _show_pairs(view, seeds)
        right.plotly_chart(charts.rank_chart(view), key="ranks", config=PLOT_SETTINGS)
    _show_spread_and_budget(view, seeds, has_drafts)
    st.subheader("Best and worst seeds of a prompt")
    _show_pictures(view, seeds)
    offer_downloads(
        view.row.run_id, {"drafts by prompt": seeds.drafts, "figures of each iteration": view.metrics}
    )


def _show_pairs(view: RunView, seeds: SeedsView) -> None:
    if seeds.pairs.empty:
        st.caption("Pairs appear with the first iteration whose drafts are older than its rollout's weights.")
        return
    above = st.empty()
    # Up to the planned end, not the current one: a growing slider forgets the choice.
    last = max(view.planned_iterations or 0, *view.metrics["iteration"].tolist())
    first, until = 1, last
    if last > 1:
        first, until = st.slider("Iterations", 1, last, (1, last), key="pair_iterations")
    pairs, iterations = seeds.pairs, seeds.iterations
    if (first, until) != (1, last):
        pairs, iterations = load(charts.read_pairs, view, first, until)
    if pairs.empty:
        above.caption("No seed of these iterations has both a stale and a fresh score.")
        return
    above.plotly_chart(charts.pair_chart(pairs), key="pairs", config=PLOT_SETTINGS)
    recorded = int(view.metrics["iteration"].between(first, until).sum())
    if recorded > len(iterations):
        st.caption(f"Seeds of {len(iterations)} of these {recorded:,} iterations, evenly spread.")


def _show_spread_and_budget(view: RunView, seeds: SeedsView, has_drafts: bool) -> None:
    st.subheader("Where the drafts went, and their effect")
    left, right = st.columns(2)
    if any(name in view.metrics for name in ("spread_random", "spread_kept", "spread_rollout")):
        left.plotly_chart(charts.spread_chart(view), key="spread", config=PLOT_SETTINGS)
    else:
        left.caption("This run has not measured the spread of its groups.")
    if not has_drafts:
        right.caption("No drafts are recorded yet.")
        return
    if view.gives_verdict:
        right.plotly_chart(charts.success_chart(seeds.drafts), key="success", config=PLOT_SETTINGS)
    prompts = seeds.drafts.loc[seeds.drafts["drafts"] > 0, "prompt_id"].nunique()
    drawn = charts.draft_map(seeds.drafts, view.gives_verdict)
    if drawn is None:
        st.caption(f"{prompts} prompts were drafted, most in only one iteration, so there is no map.")
    else:
        st.plotly_chart(drawn, key="drafts", config=PLOT_SETTINGS)
    if drawn is not None and prompts > MAP_PROMPTS:
        st.caption(f"The {MAP_PROMPTS} most drafted of {prompts} prompts.")
    looked_at = len(set(seeds.drafts["iteration"].tolist()))
    if looked_at < len(view.metrics):
        st.caption(f"Drafts of {looked_at} of {len(view.metrics):,} iterations, evenly spread.")


def _show_pictures(view: RunView, seeds: SeedsView) -> None:
    if seeds.prompts.empty:
        st.caption("Pictures appear with the first iteration.")
        return
    newest = {row["prompt_id"]: row for row in seeds.prompts.to_dict("records")}
    prompt_id = st.selectbox(
        "Prompt", list(newest), format_func=lambda number: f"{newest[number]['prompt']} (#{number})",
        key=f"prompt-{view.row.run_id}",
    )  # fmt: skip
    assert prompt_id is not None, "a select box with options and an index has a choice"
    until = newest[prompt_id]["iteration"]
    images = load(best_and_worst, view, prompt_id, _PICTURED_ITERATIONS, until=until)
    st.html(best_and_worst_html(with_verdicts(images, view.gives_verdict)))


show_page(_show_seeds)
