"""What the page Runs reads, cached, and when each run reached a score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from storage.environment import PRESET, PURPOSE
from storage.home import Home
from storage.ledger.modelled import is_modelled
from storage.record.queries import comparisons
from storage.record.reading import Records
from storage.record.run_notes import NoteStore, RunNotes
from storage.record.run_status import shown_statuses
from ui.charts.layout import Measure
from ui.data.run import CACHE_S

MOST_RUNS = 200
"""Runs of the table; the newest."""


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def load_table(home: Path, archived: bool = True) -> pd.DataFrame:
    """The latest runs; archived ones are among them, and count, only where they are asked for.

    Columns: those of `storage.record.queries.comparisons.run_table`, and preset, reward, strategy, task
    (what is judged, on which held-out prompts), scale (see `of_one_scale`), modelled (whether its dollars
    are), purpose (the check that it is part of; empty for most), tags, note, archived.

    Raises:
        StorageError: a file of the record is damaged.
    """
    with Records(Home(home)).reading() as connection:
        table = comparisons.run_table(connection, MOST_RUNS, archived)
    facts = [
        _facts(json.loads(config), json.loads(environment))
        for config, environment in zip(table["config"], table["environment"], strict=True)
    ]
    notes = NoteStore(Home(home)).notes()
    noted = [notes.get(run_id, RunNotes()) for run_id in table["run_id"]]
    return table.assign(
        **{name: [fact[name] for fact in facts] for name in _FACTS},
        status=shown_statuses(Home(home), table),
        tags=[list(note.tags) for note in noted],
        note=[note.note for note in noted],
        archived=[note.archived for note in noted],
    )


NO_PRESET = "–"
"""In place of the preset of a run that was started without one, or by a version that noted none."""

_FACTS = ("preset", "reward", "strategy", "task", "scale", "modelled", "purpose")


_SEARCHED = ("run_id", "purpose", "preset", "reward", "strategy")


def _facts(settings: Any, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the table says of a run's settings; `?` where they are of another version."""
    settings = settings if isinstance(settings, dict) else {}

    def setting(section: str, key: str) -> str:
        part = settings.get(section)
        return str(part.get(key, "?")) if isinstance(part, dict) else "?"

    reward, prompts = setting("reward", "scorer"), setting("prompts", "evaluate")
    return {
        "preset": environment.get(PRESET) or NO_PRESET,
        "reward": reward,
        "strategy": setting("exploration", "strategy"),
        "task": f"{reward} on {environment.get('digest prompts.evaluate', prompts)}",
        "scale": f"{_judged_by(settings.get('reward'))} from {setting('model', 'path')}",
        "modelled": is_modelled(settings, environment),
        "purpose": environment.get(PURPOSE, ""),
    }


def _judged_by(reward: Any) -> str:
    """The scorer with its options, whatever is learned from its scores."""
    known = reward if isinstance(reward, dict) else {}
    return json.dumps({key: value for key, value in known.items() if key != "signal"}, sort_keys=True)


def of_one_scale(table: pd.DataFrame, chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """The runs whose scores compare with the first one's, and the others.

    Scores compare where the same reward judges what the same base model became.

    Args:
        table: as `load_table` gives it.
        chosen: at least one of its runs.
    """
    scales = dict(zip(table["run_id"], table["scale"], strict=True))
    same = [run_id for run_id in chosen if scales[run_id] == scales[chosen[0]]]
    return same, [run_id for run_id in chosen if run_id not in same]


def matching(
    table: pd.DataFrame, words: str, chosen: Mapping[str, Sequence[str]], archived: bool
) -> pd.DataFrame:
    """The runs that a person looks for.

    Args:
        table: as `load_table` gives it.
        words: all of them stand in the run's identifier, purpose, preset, reward, strategy, tags or note.
        chosen: column -> the values to keep; all where it is empty.
        archived: whether archived runs are among them.
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
    """The runs to compare before a choice: the newest of the task of the newest one that has a score.

    Args:
        table: as `load_table` gives it, newest first; at least one run has a score.
        most: how many.
    """
    scored = table.loc[table["score_now"].notna()]
    return scored.loc[scored["task"] == scored["task"].iloc[0], "run_id"].tolist()[:most]


@st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)
def load_courses(home: Path, run_ids: tuple[str, ...]) -> pd.DataFrame:
    """The held-out scores of several runs; see `storage.record.queries.comparisons.score_courses`.

    Raises:
        StorageError: a file of the record is damaged.
    """
    with Records(Home(home)).reading() as connection:
        return comparisons.score_courses(connection, run_ids)


def shared_target(courses: pd.DataFrame, measure: Measure) -> float:
    """A score that every run has reached, so that all can be compared: the lowest of their best ones.

    Rounded down to hundredths, so that rounding does not put it out of reach.
    """
    best: dict[str, float] = {}
    for run_id, value in zip(courses["run_id"].tolist(), courses[measure].tolist(), strict=True):
        best[run_id] = max(value, best.get(run_id, 0.0))
    return math.floor(100 * min(best.values()) + 1e-9) / 100 if best else 0.0


def time_to_score(courses: pd.DataFrame, run_ids: list[str], measure: Measure, target: float) -> pd.DataFrame:
    """When each run's held-out figure first reached a target, counted from where its training began.

    That is the end of the evaluation before training: starting devices and scoring the untouched model is
    the same work for every run, and not what is compared.

    Args:
        courses: as `load_courses` gives them.
        run_ids: the runs.
        measure: which figure.
        target: the value to reach.

    Returns:
        Columns run_id, reached (whether), iteration, elapsed_s, usd (NaN where not; the last two 0 where the
        untouched model reached it), best.
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
