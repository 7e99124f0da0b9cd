"""What the page of the seeds shows beyond the run's own view, read once an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import streamlit as st

from storage.database.database import Database
from storage.database.queries import runs as queries
from storage.database.queries import seeds as seed_queries
from storage.home import Home
from ui.data.run import RunView

ALERT_KINDS = ("staleness", "exploration")
"""Events that a person should see before the figures."""

MOST_ITERATIONS = 60
"""Iterations whose drafts a page reads; of more, so many evenly spread ones."""

_ALERTS = 20
_PICTURED_ITERATIONS = 8


@dataclass(frozen=True)
class Pairs:
    """Stale against fresh scores of some iterations.

    Attributes:
        counts: as `storage.database.queries.seeds.pair_counts` gives them.
        iterations: those that were looked at.
    """

    counts: pd.DataFrame
    iterations: list[int]


@dataclass(frozen=True)
class SeedsView:
    """A run's frames; see storage/database/queries/seeds.py for their columns.

    Attributes:
        pairs: of all iterations.
    """

    pairs: Pairs
    drafts: pd.DataFrame
    prompts: pd.DataFrame
    alerts: pd.DataFrame


@dataclass(frozen=True)
class SpreadMeasure:
    """By what a run tells how much a group's scores differ.

    Attributes:
        word: for a sentence.
        axis: for a chart.
    """

    word: str
    axis: str


_VARIANCE = SpreadMeasure("variance", "Variance of a group's scores")
_DEVIATION = SpreadMeasure("spread", "Squared distance from the drafts' mean")


def load_seeds(home: Path, view: RunView) -> SeedsView:
    """What the page shows of one run; read again when an iteration or an event has come.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    return _load(
        home, view.row.run_id, _newest(view.metrics, "ended_at"), _newest(view.events, "happened_at")
    )


def load_pairs(home: Path, view: RunView, first: int, last: int) -> Pairs:
    """Stale against fresh scores of iterations `first` to `last`; of many, of evenly spread ones.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    return _load_pairs(home, view.row.run_id, first, last, _newest(view.metrics, "ended_at"))


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def load_pictures(home: Path, run_id: str, prompt_id: int, iteration: int) -> pd.DataFrame:
    """A prompt's latest pictures; `iteration` (that of the newest) is there to be part of the cache's key."""
    with Database(Home(home).database).reading() as connection:
        return seed_queries.best_and_worst(connection, run_id, prompt_id, _PICTURED_ITERATIONS)


def strategy(view: RunView) -> str:
    """How the run chooses its seeds; `plain` where its settings do not say."""
    return str(view.setting("exploration", "strategy") or "plain")


def spread_measure(view: RunView) -> SpreadMeasure:
    """What the run's spread figures are; variance where its settings do not say."""
    return _DEVIATION if view.setting("exploration", "criterion") == "deviation" else _VARIANCE


def least_spearman(view: RunView) -> float | None:
    """The rank correlation below which the run gives the alarm; None where it has no such setting."""
    value = view.setting("exploration", "min_spearman")
    return float(value) if isinstance(value, int | float) else None


def recent(values: np.ndarray, count: int) -> np.ndarray:
    """The last `count` values that are there."""
    return values[np.isfinite(values)][-count:]


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load(home: Path, run_id: str, iteration_at: float, event_at: float) -> SeedsView:
    """Both times are there to be part of the cache's key."""
    with Database(Home(home).database).reading() as connection:
        return read_seeds(connection, run_id)


def read_seeds(connection: duckdb.DuckDBPyConnection, run_id: str) -> SeedsView:
    """What the page shows of one run, from an open connection."""
    pairs = read_pairs(connection, run_id, 0, None)
    return SeedsView(
        pairs=pairs,
        drafts=seed_queries.drafts_by_prompt(connection, run_id, pairs.iterations),
        prompts=seed_queries.pictured_prompts(connection, run_id),
        alerts=queries.events(connection, run_id, _ALERTS, ALERT_KINDS),
    )


def read_pairs(connection: duckdb.DuckDBPyConnection, run_id: str, first: int, last: int | None) -> Pairs:
    """Stale against fresh scores of iterations `first` to `last` (or to the end), from an open connection."""
    chosen = seed_queries.spread_iterations(connection, run_id, MOST_ITERATIONS, first, last)
    return Pairs(seed_queries.pair_counts(connection, run_id, chosen), chosen)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_pairs(home: Path, run_id: str, first: int, last: int, iteration_at: float) -> Pairs:
    with Database(Home(home).database).reading() as connection:
        return read_pairs(connection, run_id, first, last)


def _newest(frame: pd.DataFrame, column: str) -> float:
    return max([0.0, *frame[column].tolist()])
