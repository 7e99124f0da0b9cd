"""What the page Runs reads, cached, and when each run reached a score."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import streamlit as st

from storage.database.database import Database
from storage.database.queries import comparisons
from storage.home import Home
from ui.charts.layout import Measure
from ui.data.run import CACHE_S

MOST_RUNS = 200
"""Runs of the table; the newest."""


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def load_table(home: Path) -> pd.DataFrame:
    """The latest runs; see `storage.database.queries.comparisons.run_table` for the columns.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    with Database(Home(home).database).reading() as connection:
        return comparisons.run_table(connection, MOST_RUNS)


@st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)
def load_courses(home: Path, run_ids: tuple[str, ...]) -> pd.DataFrame:
    """The held-out scores of several runs; see `storage.database.queries.comparisons.score_courses`.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    with Database(Home(home).database).reading() as connection:
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
    """When each run's held-out figure first reached a target.

    Args:
        courses: as `load_courses` gives them.
        run_ids: the runs.
        measure: which figure.
        target: the value to reach.

    Returns:
        Columns run_id, reached (whether), iteration, elapsed_s, usd (NaN where not), best.
    """
    rows = []
    for run_id in run_ids:
        own = courses.loc[courses["run_id"] == run_id]
        best = float(own[measure].max()) if len(own) else math.nan
        reached = own.loc[own[measure] >= target - 1e-9]
        if reached.empty:
            rows.append((run_id, False, math.nan, math.nan, math.nan, best))
            continue
        first = reached.iloc[0]
        row = (run_id, True, float(first["iteration"]), float(first["elapsed_s"]), float(first["usd"]), best)
        rows.append(row)
    return pd.DataFrame(rows, columns=["run_id", "reached", "iteration", "elapsed_s", "usd", "best"])
