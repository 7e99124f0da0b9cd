"""Data and charts of the page Seeds: stale against fresh scores, ranks, the use of drafts, spread."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from storage.environment import AS_RECORDED
from storage.record.queries import runs as queries
from storage.record.queries import seeds as seed_queries
from storage.record.reading import RecordConnection
from ui.charts.layout import add_level, add_line, laid_out
from ui.data.run import RunView
from ui.elements.formatting import chart_text
from ui.elements.palette import DRAFT_COLOUR, REFERENCE_COLOUR, SAMPLES_COLOUR, SCORE_COLOUR, faded

MAP_PROMPTS = 24
"""The number of rows of the map of drafts: the most drafted prompts."""
_LEAST_SHOWN = 0.1  # of the cells of the map
_COLUMNS = 120  # iterations of the map that stand beside each other, drafted or not
_POINTS = 300  # more different pairs than this are put on a grid
_GRID = 0.05
_LARGEST_PX = 34
_LABEL_LENGTH = 40
_MAP_COLOURS = [[0.0, faded(DRAFT_COLOUR, 0.12)], [1.0, DRAFT_COLOUR]]

ALERT_KINDS = ("staleness", "exploration")
"""The kinds of events that the page shows above the figures."""

DECISION_KIND = "strategy"
"""The kind of event that reports a decision by measured times."""

MOST_ITERATIONS = 60
"""The most iterations whose drafts a page reads; from longer runs it takes as many evenly spread ones."""

_ALERTS = 20


class SeedsView(NamedTuple):
    """A run's frames; see storage/record/queries/seeds.py for their columns.

    Attributes:
        pairs: stale against fresh scores (`pair_counts`) of all iterations.
        iterations: iterations that were read for it.
        decisions: the newest event of kind `DECISION_KIND`, if possible with a reason; empty without any.
    """

    pairs: pd.DataFrame
    iterations: list[int]
    drafts: pd.DataFrame
    prompts: pd.DataFrame
    alerts: pd.DataFrame
    decisions: pd.DataFrame


def read_seeds(connection: RecordConnection, run_id: str) -> SeedsView:
    """Return the page's data of one run, from an open connection."""
    pairs, iterations = read_pairs(connection, run_id, 0, None)
    return SeedsView(
        pairs=pairs,
        iterations=iterations,
        drafts=seed_queries.drafts_by_prompt(connection, run_id, iterations),
        prompts=seed_queries.pictured_prompts(connection, run_id),
        alerts=queries.events(connection, run_id, _ALERTS, ALERT_KINDS),
        decisions=_decision(queries.events(connection, run_id, kinds=(DECISION_KIND,))),
    )


def _decision(events: pd.DataFrame) -> pd.DataFrame:
    """Return the newest event with a reason, which repeated decisions lack; without any, the newest."""
    messages = enumerate(events["message"].tolist())
    newest = next((place for place, message in messages if not message.endswith(AS_RECORDED)), 0)
    return events.iloc[newest : newest + 1]


def read_pairs(
    connection: RecordConnection, run_id: str, first: int, last: int | None
) -> tuple[pd.DataFrame, list[int]]:
    """Return stale against fresh scores from `first` to `last` (None: the end), and the iterations read."""
    chosen = seed_queries.spread_iterations(connection, run_id, MOST_ITERATIONS, first, last)
    return seed_queries.pair_counts(connection, run_id, chosen), chosen


def pair_chart(pairs: pd.DataFrame) -> go.Figure:
    """Chart each seed's score by the stale draft against its fresh one; circles grow with the seeds' number.

    Args:
        pairs: frame from `storage.record.queries.seeds.pair_counts`, with at least one row.
    """
    scores = [*pairs["stale"], *pairs["fresh"]]
    low, high = min(0.0, *scores), max(1.0, *scores)
    figure = go.Figure()
    counted = _counted(pairs)
    largest = max(counted.values())
    # Scores are few different values: the two kinds would cover each other, so they stand side by side.
    shift = 0.012 * (high - low)
    for kept, name, colour, offset in (
        (True, "rolled out", SCORE_COLOUR, -shift),
        (False, "left out", SAMPLES_COLOUR, shift),
    ):
        part = [(stale, fresh, seeds) for (which, stale, fresh), seeds in counted.items() if which == kept]
        if not part:
            continue
        stale, fresh, seeds = (list(column) for column in zip(*part, strict=True))
        figure.add_scatter(
            x=[score + offset for score in stale], y=fresh, name=name, mode="markers",
            marker={
                "color": colour, "opacity": 0.75, "sizemode": "area", "sizemin": 2, "size": seeds,
                "sizeref": 2 * largest / _LARGEST_PX**2, "line": {"width": 0},
            },
            customdata=list(zip(stale, seeds, strict=True)),
            hovertemplate="stale %{customdata[0]:.2f}, fresh %{y:.2f}: %{customdata[1]} seeds",
        )  # fmt: skip
    figure.add_scatter(
        x=[low, high], y=[low, high], name="no change", mode="lines", hoverinfo="skip",
        line={"color": REFERENCE_COLOUR, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    figure = laid_out(figure, "Same seed, older and newer weights", "Score of the stale draft", "Fresh score")
    margin = 0.1 * (high - low)
    figure.update_layout(hovermode="closest", legend_itemsizing="constant")
    figure.update_xaxes(range=[low - margin, high + margin])
    return figure.update_yaxes(range=[low - margin, high + margin])


def rank_chart(view: RunView, least: float | None) -> go.Figure:
    """Return a chart of how well stale drafts rank the seeds, over the iterations.

    Args:
        least: Spearman correlation below which the run raises its alarm, if it has one.
    """
    figure = go.Figure()
    _add_course(figure, view, "kept_overlap", "kept overlap", DRAFT_COLOUR, 1.5)
    _add_course(figure, view, "kendall", "Kendall", SAMPLES_COLOUR, 1.5)
    _add_course(figure, view, "spearman", "Spearman", SCORE_COLOUR, 3)
    if least is not None:
        add_level(figure, least, f"alarm below {least:g}")
    figure = laid_out(figure, "Do older weights rank seeds well?", "Iteration", "Rank correlation, share")
    values = np.concatenate([view.metric(name) for name in ("spearman", "kendall", "kept_overlap")])
    lowest = min([0.0, *values[np.isfinite(values)]])
    return figure.update_yaxes(range=[1.1 * lowest, 1.04])


def spread_chart(view: RunView) -> go.Figure:
    """Return a chart of the variance of a prompt group's scores: random, chosen by drafts, rolled out."""
    figure = go.Figure()
    _add_course(figure, view, "spread_random", "random", SAMPLES_COLOUR, 2)
    _add_course(figure, view, "spread_kept", "kept (drafts)", DRAFT_COLOUR, 1.5, line_dash="dot")
    _add_course(figure, view, "spread_rollout", "kept (rollout)", SCORE_COLOUR, 3)
    title = "Variance of a prompt group's scores"
    figure = laid_out(figure, "Variance before and after the choice", "Iteration", title)
    return figure.update_yaxes(rangemode="tozero")


def draft_map(drafts: pd.DataFrame, verdicts: bool = True) -> go.Figure | None:
    """Chart drafts by prompt and iteration, the most drafted prompts on top; empty if one was not drafted.

    Args:
        drafts: frame from `storage.record.queries.seeds.drafts_by_prompt`.
        verdicts: True if the reward may call a draft a success.

    Returns:
        The chart; None if nearly all of it would be empty, as in short runs over many prompts.
    """
    cells = {
        (row["prompt_id"], row["iteration"]): row for row in drafts.to_dict("records") if row["drafts"] > 0
    }
    prompts = {prompt_id: row["prompt"] for (prompt_id, _), row in cells.items()}
    totals: Counter[int] = Counter()
    for (prompt_id, _), row in cells.items():
        totals[prompt_id] += row["drafts"]
    rows = [prompt_id for prompt_id, _ in totals.most_common(MAP_PROMPTS)]
    iterations = _columns(sorted(set(drafts["iteration"].tolist())))
    shown = sum(prompt_id in rows for prompt_id, _ in cells)
    if shown < _LEAST_SHOWN * len(rows) * len(iterations):
        return None

    def table(column: str) -> list[list]:
        return [[cells.get((row, i), {}).get(column) for i in iterations] for row in rows]

    succeed = ", %{customdata:.0%} succeed" * verdicts
    figure = go.Figure(
        go.Heatmap(
            # Rows are identified by the prompt's number: two shortened prompts may read the same.
            x=iterations, y=[str(row) for row in rows], z=table("drafts"), xgap=1, ygap=1,
            colorscale=_MAP_COLOURS, colorbar={"title": "drafts", "thickness": 12}, hoverongaps=False,
            customdata=table("success_share"),
            text=[[chart_text(prompts[row])] * len(iterations) for row in rows],
            hovertemplate=f"%{{text}}<br>iteration %{{x}}: %{{z}} drafts{succeed}<extra></extra>",
        )
    )  # fmt: skip
    figure = laid_out(figure, "Drafts by prompt", "Iteration", "")
    figure.update_xaxes(showgrid=False)
    figure.update_layout(hovermode="closest", height=140 + 20 * max(10, len(rows)))
    return figure.update_yaxes(
        showgrid=False, type="category", autorange="reversed",
        tickmode="array", tickvals=[str(row) for row in rows],
        ticktext=[chart_text(_shortened(f"#{row} {prompts[row]}")) for row in rows],
    )  # fmt: skip


def success_chart(drafts: pd.DataFrame) -> go.Figure:
    """Chart each prompt's drafts per iteration against their success: the budget should go to the middle.

    Args:
        drafts: frame from `storage.record.queries.seeds.drafts_by_prompt`.
    """
    by_prompt: dict[int, list[dict]] = {}
    for row in drafts.to_dict("records"):
        if row["drafts"] > 0:
            by_prompt.setdefault(row["prompt_id"], []).append(row)
    seeds = [sum(row["seeds"] for row in rows) for rows in by_prompt.values()]
    successes = [sum(row["success_share"] * row["seeds"] for row in rows) for rows in by_prompt.values()]
    figure = go.Figure()
    figure.add_scatter(
        x=[part / whole for part, whole in zip(successes, seeds, strict=True)],
        y=[sum(row["drafts"] for row in rows) / len(rows) for rows in by_prompt.values()],
        mode="markers", name="a prompt", marker={"color": SCORE_COLOUR, "size": 10, "opacity": 0.7},
        customdata=[(chart_text(rows[0]["prompt"]), len(rows)) for rows in by_prompt.values()],
        hovertemplate="%{customdata[0]}<br>%{x:.0%} of its drafts succeed, %{y:.1f} drafts in each of "
        "%{customdata[1]} iterations<extra></extra>",
    )  # fmt: skip
    figure = laid_out(figure, "Drafts against success", "Drafts that succeed (share)", "Drafts an iteration")
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(range=[-0.04, 1.04], tickformat=".0%")
    return figure.update_yaxes(rangemode="tozero")


def _add_course(
    figure: go.Figure, view: RunView, name: str, title: str, colour: str, width: float, **more: str
) -> None:
    """Add a metric's line, if any iteration has it."""
    values = view.metric(name)
    if np.isfinite(values).any():
        add_line(figure, view.metrics["iteration"], values, title, colour, width, connectgaps=True, **more)


def _counted(pairs: pd.DataFrame) -> Counter[tuple[bool, float, float]]:
    """Count the seeds of each (kept, stale, fresh); many different scores are put on a grid."""
    scores = pairs[["stale", "fresh"]].to_numpy(dtype=float)
    if len(np.unique(scores, axis=0)) > _POINTS:
        scores = np.round(scores / _GRID) * _GRID
    counted: Counter[tuple[bool, float, float]] = Counter()
    for kept, stale, fresh, seeds in zip(
        pairs["kept"].tolist(), scores[:, 0].tolist(), scores[:, 1].tolist(), pairs["seeds"].tolist(),
        strict=True,
    ):  # fmt: skip
        counted[bool(kept), stale, fresh] += seeds
    return counted


def _columns(iterations: list[int]) -> list[int]:
    """Return the iterations of the map: without a gap, unless only some of a long run were read."""
    every = range(iterations[0], iterations[-1] + 1)
    return iterations if len(every) > _COLUMNS else list(every)


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH else text[: _LABEL_LENGTH - 1] + "…"
