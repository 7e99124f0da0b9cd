"""Data and charts of the page Seeds: stale against fresh scores, ranks, the use of drafts, spread."""

from __future__ import annotations

from typing import Any, NamedTuple

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

MAP_PROMPTS = 24  # number of rows of the map of drafts: the most drafted prompts
_LEAST_SHOWN = 0.1  # of the cells of the map
_COLUMNS = 120  # iterations of the map that stand beside each other, drafted or not
_POINTS = 300  # more different pairs than this are put on a grid
_GRID = 0.05
_LARGEST_PX = 34
_LABEL_LENGTH = 40
_MAP_COLOURS = [[0.0, faded(DRAFT_COLOUR, 0.12)], [1.0, DRAFT_COLOUR]]

MOST_ITERATIONS = 60
"""Most iterations whose drafts a page reads; in longer runs they are evenly spread."""

_ALERT_KINDS = ("staleness", "exploration")
_ALERTS = 20


class SeedsView(NamedTuple):
    """A run's frames; see storage/record/queries/seeds.py for their columns.

    Attributes:
        pairs: stale against fresh scores (`pair_counts`) of the `iterations` that were read.
        decisions: the newest event of kind `strategy`, preferably with a reason; may be empty.
    """

    pairs: pd.DataFrame
    iterations: list[int]
    drafts: pd.DataFrame
    prompts: pd.DataFrame
    alerts: pd.DataFrame
    decisions: pd.DataFrame


def read_seeds(connection: RecordConnection, run_id: str) -> SeedsView:
    """Return a run's data for the page, from an open connection."""
    pairs, iterations = read_pairs(connection, run_id, 0, None)
    decisions = queries.events(connection, run_id, kinds=("strategy",))
    repeated = enumerate(message.endswith(AS_RECORDED) for message in decisions["message"])
    newest = next((place for place, lacks_reason in repeated if not lacks_reason), 0)
    return SeedsView(
        pairs=pairs,
        iterations=iterations,
        drafts=seed_queries.drafts_by_prompt(connection, run_id, iterations),
        prompts=seed_queries.pictured_prompts(connection, run_id),
        alerts=queries.events(connection, run_id, _ALERTS, _ALERT_KINDS),
        decisions=decisions.iloc[newest : newest + 1],
    )


def read_pairs(
    connection: RecordConnection, run_id: str, first: int, last: int | None
) -> tuple[pd.DataFrame, list[int]]:
    """Return stale against fresh scores from `first` to `last` (None: the end), and the iterations read."""
    chosen = seed_queries.spread_iterations(connection, run_id, MOST_ITERATIONS, first, last)
    return seed_queries.pair_counts(connection, run_id, chosen), chosen


def pair_chart(pairs: pd.DataFrame) -> go.Figure:
    """Chart seeds' stale against fresh scores (`pair_counts`); circles grow with their number."""
    scores = [*pairs["stale"], *pairs["fresh"]]
    low, high = min(0.0, *scores), max(1.0, *scores)
    counted: Any = pairs.assign(kept=pairs["kept"].astype(bool))
    if len(pairs[["stale", "fresh"]].drop_duplicates()) > _POINTS:
        counted[["stale", "fresh"]] = (counted[["stale", "fresh"]] / _GRID).round() * _GRID
    counted = counted.groupby(["kept", "stale", "fresh"])[["seeds"]].sum().reset_index()
    figure = go.Figure()
    # Scores take few values: side by side, the two kinds do not cover each other.
    shift = 0.012 * (high - low)
    for kept, name, colour, offset in (
        (True, "rolled out", SCORE_COLOUR, -shift),
        (False, "left out", SAMPLES_COLOUR, shift),
    ):
        part = counted.loc[counted["kept"] == kept]
        if part.empty:
            continue
        figure.add_scatter(
            x=part["stale"] + offset, y=part["fresh"], name=name, mode="markers",
            marker={
                "color": colour, "opacity": 0.75, "sizemode": "area", "sizemin": 2, "size": part["seeds"],
                "sizeref": 2 * max(counted["seeds"]) / _LARGEST_PX**2, "line": {"width": 0},
            },
            customdata=part[["stale", "seeds"]].to_numpy(),
            hovertemplate="stale %{customdata[0]:.2f}, fresh %{y:.2f}: %{customdata[1]} seeds",
        )  # fmt: skip
    figure.add_scatter(
        x=[low, high], y=[low, high], name="no change", mode="lines", hoverinfo="skip",
        line={"color": REFERENCE_COLOUR, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    ends = [low - 0.1 * (high - low), high + 0.1 * (high - low)]
    return laid_out(
        figure, "Same seed, older and newer weights", "Score of the stale draft", "Fresh score",
        hovermode="closest", legend_itemsizing="constant", xaxis_range=ends, yaxis_range=ends,
    )  # fmt: skip


def rank_chart(view: RunView) -> go.Figure:
    """Chart how well stale drafts rank the seeds, with the run's alarm level."""
    figure, least = go.Figure(), view.least_spearman
    _add_course(figure, view, "kept_overlap", "kept overlap", DRAFT_COLOUR, 1.5)
    _add_course(figure, view, "kendall", "Kendall", SAMPLES_COLOUR, 1.5)
    _add_course(figure, view, "spearman", "Spearman", SCORE_COLOUR, 3)
    if least is not None:
        add_level(figure, least, f"alarm below {least:g}")
    lowest = min([0.0, *(x for name in ("spearman", "kendall", "kept_overlap") for x in view.measured(name))])
    return laid_out(
        figure, "Do older weights rank seeds well?", "Iteration", "Rank correlation, share",
        yaxis_range=[1.1 * lowest, 1.04],
    )  # fmt: skip


def spread_chart(view: RunView) -> go.Figure:
    """Return a chart of the variance of a prompt group's scores: random, chosen by drafts, rolled out."""
    figure = go.Figure()
    _add_course(figure, view, "spread_random", "random", SAMPLES_COLOUR, 2)
    _add_course(figure, view, "spread_kept", "kept (drafts)", DRAFT_COLOUR, 1.5, line_dash="dot")
    _add_course(figure, view, "spread_rollout", "kept (rollout)", SCORE_COLOUR, 3)
    heading, left = "Variance before and after the choice", "Variance of a prompt group's scores"
    return laid_out(figure, heading, "Iteration", left, yaxis_rangemode="tozero")


def draft_map(drafts: pd.DataFrame, verdicts: bool = True) -> go.Figure | None:
    """Chart `drafts_by_prompt` by iteration, the most drafted prompts on top; empty if one was not drafted.

    None if nearly all of it would be empty, as in short runs over many prompts.
    """
    drafted = drafts.loc[drafts["drafts"] > 0]
    prompts = dict(zip(drafted["prompt_id"], drafted["prompt"], strict=True))
    totals = drafted.groupby("prompt_id", sort=False)["drafts"].sum()
    rows = totals.sort_values(ascending=False, kind="stable").index[:MAP_PROMPTS].tolist()
    iterations = sorted(set(drafts["iteration"].tolist()))
    every = range(iterations[0], iterations[-1] + 1)
    if len(every) <= _COLUMNS:  # otherwise only part of a long run was read
        iterations = list(every)
    if drafted["prompt_id"].isin(rows).sum() < _LEAST_SHOWN * len(rows) * len(iterations):
        return None

    def table(column: str) -> np.ndarray:
        by_prompt = drafted.pivot(index="prompt_id", columns="iteration", values=column)
        return by_prompt.reindex(index=rows, columns=iterations).to_numpy(dtype=float)

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
    labels = [f"#{row} {prompts[row]}" for row in rows]
    short = [text if len(text) <= _LABEL_LENGTH else f"{text[: _LABEL_LENGTH - 1]}…" for text in labels]
    return laid_out(
        figure, "Drafts by prompt", "Iteration", "", hovermode="closest",
        height=140 + 20 * max(10, len(rows)), xaxis_showgrid=False,
        yaxis={
            "showgrid": False, "type": "category", "autorange": "reversed", "tickmode": "array",
            "tickvals": [str(row) for row in rows], "ticktext": [*map(chart_text, short)],
        },
    )  # fmt: skip


def success_chart(drafts: pd.DataFrame) -> go.Figure:
    """Chart each prompt's drafts per iteration against their success; budget should go to the middle."""
    drafted = drafts.loc[drafts["drafts"] > 0]
    seeds = drafted["seeds"].where(drafted["success_share"].notna(), 0)  # those that were scored
    drafted = drafted.assign(seeds=seeds, successes=drafted["success_share"] * seeds, iterations=1)
    by_prompt = drafted.groupby(["prompt_id", "prompt"], as_index=False).sum()
    figure = go.Figure()
    figure.add_scatter(
        x=by_prompt["successes"] / by_prompt["seeds"], y=by_prompt["drafts"] / by_prompt["iterations"],
        mode="markers", name="a prompt", marker={"color": SCORE_COLOUR, "size": 10, "opacity": 0.7},
        customdata=list(zip(map(chart_text, by_prompt["prompt"]), by_prompt["iterations"], strict=True)),
        hovertemplate="%{customdata[0]}<br>%{x:.0%} of its drafts succeed, %{y:.1f} drafts in each of "
        "%{customdata[1]} iterations<extra></extra>",
    )  # fmt: skip
    return laid_out(
        figure, "Drafts against success", "Drafts that succeed (share)", "Drafts an iteration",
        hovermode="closest", xaxis_range=[-0.04, 1.04], xaxis_tickformat=".0%", yaxis_rangemode="tozero",
    )  # fmt: skip


def _add_course(
    figure: go.Figure, view: RunView, name: str, title: str, colour: str, width: float, **more: str
) -> None:
    if view.measured(name).size:
        x, y = view.metrics["iteration"], view.metric(name)
        add_line(figure, x, y, title, colour, width, connectgaps=True, **more)
