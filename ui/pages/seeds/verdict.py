"""The short answer of the page Seeds: whether older weights rank seeds well, and whether choosing pays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from storage.record.results import variance_gain
from ui.data.methods import least_spearman
from ui.data.run import RunView
from ui.elements.formatting import figure as as_figure
from ui.elements.formatting import moment, percent, plain_markdown, short_duration
from ui.elements.tiles import show_tile

DEFAULT_LEAST = 0.5
"""The correlation below which ranks count as not holding, if the run's settings give none."""

_RECENT = 20  # iterations that the verdict is over
_SHOWN_ALERTS = 3


def show_plain() -> None:
    """Say that the run does not explore, what exploration does and how to switch it on."""
    st.info(
        "**This run does not explore**: it takes the first seeds of each prompt, so there is nothing to "
        "compare here.",
        icon=":material/grain:",
    )
    st.markdown(
        "With exploration, spot devices draft many seeds of the next iteration's prompts while the reserved "
        "device trains, and the seeds whose scores differ most are rolled out: equal scores give no "
        "gradient. The drafts come from weights that are one iteration old; this page shows whether they "
        "still rank the seeds correctly. To start such a run:"
    )
    st.code("spotlight train --preset glyphs --set exploration.strategy=stale", language="bash")


def show_alerts(alerts: pd.DataFrame) -> None:
    """Show the run's alarms about its exploration, newest first."""
    rows = alerts.head(_SHOWN_ALERTS).to_dict("records")
    if not rows:
        return
    lines = [f"{moment(row['happened_at'])}: {plain_markdown(row['message'])}" for row in rows]
    if len(alerts) > len(rows):
        lines.append(f"and {len(alerts) - len(rows)} earlier, among the events of the page Convergence")
    st.warning("\n\n".join(lines), icon=":material/notification_important:")


def show_decision(view: RunView, decisions: pd.DataFrame) -> None:
    """Show which strategy a run that decides by itself follows, and why."""
    strategy = view.setting("exploration", "strategy")
    for row in decisions.to_dict("records"):
        st.info(
            f"`exploration.strategy={strategy}`: {plain_markdown(row['message'])}",
            icon=":material/alt_route:",
        )


def show_seed_verdict(view: RunView) -> None:
    """Show whether older weights rank seeds well, and what the choice does to the spread."""
    gain = _gain(view)
    ranks = _recent(view.metric("spearman"), _RECENT)
    if not ranks.size:
        st.info(
            "**Not known yet whether last iteration's weights rank seeds well**: no iteration has compared "
            f"their scores with newer ones. {gain}",
            icon=":material/hourglass:",
        )
        return
    median = float(np.median(ranks))
    over = f"median of {len(ranks)} iterations" if len(ranks) > 1 else "one iteration"
    least = least_spearman(view)
    limit = DEFAULT_LEAST if least is None else least
    found = f"rank correlation {median:.2f}"
    if median < limit:
        st.error(
            f"**Last iteration's weights rank seeds badly: {found}** ({over}), below {limit:g}. {gain}",
            icon=":material/trending_down:",
        )
    elif float(ranks[-1]) < limit:
        st.warning(
            f"**Last iteration's weights ranked seeds well, but not lately: {found}** ({over}), now "
            f"{ranks[-1]:.2f}, below {limit:g}. {gain}",
            icon=":material/warning:",
        )
    else:
        st.success(
            f"**Last iteration's weights still rank seeds well: {found}** ({over}). {gain}",
            icon=":material/check_circle:",
        )


def show_seed_figures(view: RunView) -> None:
    """Show six figures in a row, with a dash for each that the run does not measure."""
    row = st.container(horizontal=True)
    drafts = view.metric("drafts")
    unexplored = view.metric("prompts_unexplored")
    show_tile(
        row, "Drafts", "-" if np.isnan(drafts).all() else f"{np.nansum(drafts):,.0f}",
        None if np.isnan(drafts).all() else f"{np.nanmean(drafts):.0f} an iteration",
        "Images generated to choose seeds; those of the rollout do not count.",
    )  # fmt: skip
    show_tile(
        row, "Kept overlap", _latest(view, "kept_overlap", percent), _median(view, "kept_overlap", percent),
        "Share of the seeds chosen by stale drafts that fresh scores would have chosen too.",
    )  # fmt: skip
    show_tile(
        row, "Draft error", _latest(view, "draft_error", as_figure), _median(view, "draft_error", as_figure),
        "Mean distance between a seed's draft score and its score as rolled out.",
    )  # fmt: skip
    value, how = _spread_ratio(view) or (None, None)
    show_tile(
        row, "Variance gain", "-" if value is None else f"{value:.2f}×", how,
        "Variance of a prompt group's scores: kept groups over random ones, over all iterations.",
    )  # fmt: skip
    show_tile(
        row, "Wait for exploration", _latest(view, "explore_wait_s", short_duration),
        _median(view, "explore_wait_s", short_duration),
        "Time after training in which the devices waited for the seeds of the next iteration.",
    )  # fmt: skip
    show_tile(
        row, "Prompts without drafts", _latest(view, "prompts_unexplored", "{:.0f}".format),
        None if np.isnan(unexplored).all() else f"{np.nansum(unexplored):.0f} in all iterations",
        "Prompts rolled out with their first seeds, because no drafts of them were ready.",
    )  # fmt: skip


def _recent(values: np.ndarray, count: int) -> np.ndarray:
    """Return the last `count` values that were measured."""
    return values[np.isfinite(values)][-count:]


def _latest(view: RunView, name: str, as_text) -> str:
    values = _recent(view.metric(name), 1)
    return as_text(float(values[0])) if values.size else "-"


def _median(view: RunView, name: str, as_text) -> str | None:
    values = _recent(view.metric(name), len(view.metrics))
    return f"{as_text(float(np.median(values)))} median" if values.size > 1 else None


def _gain(view: RunView) -> str:
    """Describe the effect of the choice on the spread; empty if it was not measured."""
    ratio = _spread_ratio(view)
    if ratio is None:
        return ""
    value, how = ratio
    found = f"ept groups have {value:.1f}x the variance of random ones."
    return f"By their drafts, k{found}" if how == "by drafts" else f"K{found}"


def _spread_ratio(view: RunView) -> tuple[float, str] | None:
    """Return the run's variance gain, and how it was found."""
    names = ("spread_random", "spread_rollout", "spread_kept")
    gain = variance_gain(zip(*(view.metric(name).tolist() for name in names), strict=True))
    return gain and (gain.ratio, "as rolled out" if gain.rolled_out else "by drafts")
