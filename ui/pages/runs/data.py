"""Data and charts of the page Runs, and when each run reached a score.

Functions that read the record raise StorageError if a file of it is damaged. A table is a frame from
`load_table`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from storage.config.loading import flat
from storage.environment import MODELLED, PRESET, PURPOSE, REWARD_DIGEST, gives_verdict, is_modelled
from storage.evaluations.strategies import compared_strategies, strategy_arms
from storage.home import Home
from storage.record.queries import images, runs
from storage.record.queries.runs import run_overview
from storage.record.run_status import shown_statuses
from storage.record.run_store import RunNotes, RunStore
from ui.charts.layout import Axis, Measure, add_line, as_bill, axis_titles, laid_out
from ui.data.run import CACHE_S
from ui.elements.formatting import chart_text, time_unit
from ui.elements.palette import RUN_COLOURS, RUN_SYMBOLS

MOST_RUNS = 200  # number of runs in the table, newest first


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def load_table(home: Home, archived: bool = True, checks: bool = True) -> pd.DataFrame:
    """Return the latest runs.

    Args:
        archived: True to include archived runs, and to count them.
        checks: the same for runs that are part of a check, and simulated ones.

    Columns: those of `storage.record.queries.runs.run_overview`, and preset, reward, strategy, task
    (subject and held-out prompts of the judgement), scale and reward_file (see `of_one_scale`), modelled
    (True if its dollars are), verdicts (True if its reward may call an image exact; otherwise exact_now is
    NaN), purpose (the check that it is part of; empty for most), tags, note, archived, of (number of all such
    runs).
    """
    with RunStore(home).reading() as connection:
        latest, of = runs.latest_runs(connection, MOST_RUNS, archived, checks)
    # By name, to keep the files of all other runs closed.
    with RunStore(home).reading(*latest) as connection:
        table = run_overview(connection, latest)
    facts = [
        _facts(json.loads(config), json.loads(environment))
        for config, environment in zip(table["config"], table["environment"], strict=True)
    ]
    notes = RunStore(home).notes()
    noted = [notes.get(run_id, RunNotes()) for run_id in table["run_id"]]
    return table.assign(
        **{name: [fact[name] for fact in facts] for name in _FACTS},
        status=shown_statuses(home, table),
        tags=[list(note.tags) for note in noted],
        note=[note.note for note in noted],
        archived=[note.archived for note in noted],
        of=of,
    )


NO_PRESET = "–"  # for a run without a preset, or from a version that recorded none
_FACTS = ("preset", "reward", "strategy", "task", "scale", "reward_file", "modelled", "verdicts", "purpose")
_SEARCHED = ("run_id", "purpose", "preset", "reward", "strategy")


def _facts(settings: Any, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return facts from a run's settings for the table; `?` if another version wrote the settings."""
    settings = settings if isinstance(settings, dict) else {}

    def setting(section: str, key: str) -> str:
        part = settings.get(section)
        return str(part.get(key, "?")) if isinstance(part, dict) else "?"

    reward, prompts = setting("reward", "scorer"), setting("prompts", "evaluate")
    known = settings["reward"] if isinstance(settings.get("reward"), dict) else {}
    judged_by = {key: value for key, value in known.items() if key != "signal"}  # either signal
    return {
        "preset": environment.get(PRESET) or NO_PRESET,
        "reward": reward,
        "strategy": setting("exploration", "strategy"),
        "task": f"{reward} on {environment.get('digest prompts.evaluate', prompts)}",
        "scale": f"{json.dumps(judged_by, sort_keys=True)} from {setting('model', 'path')}",
        "reward_file": environment.get(REWARD_DIGEST, ""),
        "modelled": is_modelled(settings, environment),
        "verdicts": gives_verdict(environment),
        "purpose": environment.get(PURPOSE, ""),
    }


def of_one_scale(table: pd.DataFrame, chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the runs whose scores are comparable with the first one's, and the others.

    They share reward, base model and, if known, the reward's file (earlier versions kept no digest of it).
    """
    if not chosen:
        return [], []
    rows = table.set_index("run_id").loc[[*chosen]]
    alike = rows.loc[rows["scale"] == rows["scale"].iloc[0], "reward_file"]
    known = [digest for digest in alike if digest]
    same = alike.index[alike.isin(["", *known[:1]])].tolist()
    return same, [run_id for run_id in chosen if run_id not in same]


def matching(
    table: pd.DataFrame, words: str, chosen: Mapping[str, Sequence[str]], archived: bool
) -> pd.DataFrame:
    """Return the runs that match a search.

    Args:
        words: words that must all occur in a run's `_SEARCHED` columns, tags or note.
        chosen: values to keep, by column; all if empty.
    """
    kept = table if archived else table.loc[~table["archived"].astype(bool)]
    for column, values in chosen.items():
        if values:
            kept = kept.loc[kept[column].isin(values)]
    texts = [
        " ".join((*(row[name] for name in _SEARCHED), *row["tags"], row["note"]))
        for row in kept.to_dict("records")
    ]
    wanted = words.casefold().split()
    return kept.loc[[all(word in text.casefold() for word in wanted) for text in texts]]


def first_compared(table: pd.DataFrame, most: int) -> list[str]:
    """Return the default runs to compare: the newest with the same task as the newest scored run."""
    scored = table.loc[table["score_now"].notna()]
    return scored.loc[scored["task"] == scored["task"].iloc[0], "run_id"].tolist()[:most]


class Compared(NamedTuple):
    """The data of several runs side by side.

    Attributes:
        courses: held-out scores; see `storage.record.queries.runs.score_courses`.
        metrics: figures of iterations; see `storage.record.queries.runs.metric_courses`.
        answer: which strategy scores higher; None unless the runs differ only in strategy and seed.
    """

    courses: pd.DataFrame
    metrics: pd.DataFrame
    answer: dict[str, Any] | None


@st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)
def load_compared(home: Home, run_ids: tuple[str, ...]) -> Compared:
    """Return the data of several runs."""
    with RunStore(home).reading(*run_ids) as connection:
        arms = strategy_arms(connection, run_ids)
        return Compared(
            runs.score_courses(connection, run_ids),
            runs.metric_courses(connection, run_ids),
            compared_strategies(connection, arms) if arms else None,
        )


@st.cache_data(ttl=60, max_entries=8, show_spinner=False)
def load_pictures(home: Home, run_ids: tuple[str, ...], most: int) -> pd.DataFrame:
    """Return the latest held-out pictures; see `storage.record.queries.images.latest_pictures`."""
    with RunStore(home).reading(*run_ids) as connection:
        return images.latest_pictures(connection, run_ids, most)


def differing_settings(table: pd.DataFrame, run_ids: Sequence[str]) -> pd.DataFrame:
    """Return the settings that differ between runs, as JSON: setting, and a column per run."""
    configs = dict(zip(table["run_id"], table["config"], strict=True))
    by_run = [
        {name: json.dumps(value) for name, value in flat(json.loads(configs[run_id]))} for run_id in run_ids
    ]
    names = dict.fromkeys(name for settings in by_run for name in settings)
    rows = [(name, *(settings.get(name, "") for settings in by_run)) for name in names]
    return pd.DataFrame([row for row in rows if len(set(row[1:])) > 1], columns=["setting", *run_ids])


def shared_target(courses: pd.DataFrame, measure: Measure) -> float:
    """Return a score that every run reached: the lowest of their best, rounded down to hundredths."""
    best: Any = courses.groupby("run_id")[measure].max()
    return 0.0 if best.empty else max(0.0, math.floor(100 * float(best.min()) + 1e-9) / 100)


def time_to_score(courses: pd.DataFrame, run_ids: list[str], measure: Measure, target: float) -> pd.DataFrame:
    """Return when each run's held-out figure first reached a target, counted from the start of training.

    Training starts at the end of the evaluation before it: starting devices and scoring the untouched model
    is the same work for every run, so it is not compared.

    Args:
        courses: frame as in `Compared`.

    Returns:
        Columns run_id, reached (bool), iteration, elapsed_s, usd (NaN if not; the last two 0 if the untrained
        model reached it), best.
    """
    rows = []
    for run_id in run_ids:
        own = courses.loc[courses["run_id"] == run_id]
        best = float(own[measure].max()) if len(own) else math.nan
        reached = own.loc[own[measure] >= target - 1e-9]
        if reached.empty:
            rows.append((run_id, False, math.nan, math.nan, math.nan, best))
            continue
        first, untouched = reached.iloc[0], own.loc[own["iteration"] == 0]
        began_s, began_usd = (
            (0.0, 0.0) if untouched.empty else (untouched["elapsed_s"].iloc[0], untouched["usd"].iloc[0])
        )
        elapsed_s, usd = float(first["elapsed_s"] - began_s), float(first["usd"] - began_usd)
        rows.append((run_id, True, float(first["iteration"]), elapsed_s, usd, best))
    return pd.DataFrame(rows, columns=["run_id", "reached", "iteration", "elapsed_s", "usd", "best"])


def comparison_chart(
    courses: pd.DataFrame,
    run_ids: list[str],
    column: str,
    title: str,
    over: Axis,
    modelled: Collection[str] = (),
) -> go.Figure:
    """Return a chart of a figure of several runs.

    Args:
        courses: frame from `score_courses` or `metric_courses` of `storage.record.queries.runs`.
        run_ids: runs in the order of the legend; at most as many as colours.
    """
    longest_s = max([0.0, *courses["elapsed_s"].tolist()])
    heading, bottom = axis_titles(over, longest_s, set(run_ids) <= set(modelled))
    along = {"iteration": "iteration", "time": "elapsed_s", "usd": "usd"}[over]
    scale = time_unit(longest_s)[0] if over == "time" else 1.0
    figure = go.Figure()
    for run_id, colour, symbol in zip(run_ids, RUN_COLOURS, RUN_SYMBOLS, strict=False):
        own = courses.loc[courses["run_id"] == run_id]
        name = _named(run_id, over == "usd" and run_id in modelled)
        marks = {"mode": "lines+markers", "marker": {"size": 7, "symbol": symbol}}
        add_line(figure, own[along] / scale, own[column], name, colour, number=".4g", **marks)
    return laid_out(figure, heading, bottom, title)


def paid_chart(table: pd.DataFrame) -> go.Figure:
    """Return a chart of the cost of each run so far, in the order of the legend."""
    runs, whole = [*zip(table["run_id"], table["modelled"], strict=True)], bool(table["modelled"].all())
    names = [_named(run_id, own) for run_id, own in runs]
    # Long names would leave no room for the bars. If all dollars are modelled, the axis says so.
    short = [run_id if len(run_id) <= 20 else f"{run_id[:7]}…{run_id[-11:]}" for run_id, _ in runs]
    ticks = [_named(name, own and not whole) for name, (_, own) in zip(short, runs, strict=True)]
    figure = go.Figure()
    figure.add_bar(
        y=names, x=table["usd"], orientation="h",
        marker={"color": list(RUN_COLOURS[: len(table)])}, hovertemplate="%{y}: $%{x:,.4r}<extra></extra>",
    )  # fmt: skip
    return as_bill(
        figure, "Cost so far", whole, showlegend=False, xaxis_rangemode="tozero",
        yaxis={"autorange": "reversed", "type": "category", "tickvals": names, "ticktext": ticks},
    )  # fmt: skip


def _named(run_id: str, modelled: bool) -> str:
    return f"{chart_text(run_id)} {MODELLED}" if modelled else chart_text(run_id)
