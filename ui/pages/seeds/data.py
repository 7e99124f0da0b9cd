"""The data of the page Seeds beyond the run's own figures, once per iteration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from storage.environment import AS_RECORDED
from storage.home import Home
from storage.record.queries import runs as queries
from storage.record.queries import seeds as seed_queries
from storage.record.reading import RecordConnection, Records
from ui.data.run import Newest, RunView

ALERT_KINDS = ("staleness", "exploration")
"""The kinds of events that the page shows above the figures."""

DECISION_KIND = "strategy"
"""The kind of event that reports a decision by measured times."""

MOST_ITERATIONS = 60
"""The most iterations whose drafts a page reads; from longer runs it takes as many evenly spread ones."""

_ALERTS = 20
_PICTURED_ITERATIONS = 8


@dataclass(frozen=True)
class Pairs:
    """Stale against fresh scores of some iterations.

    Attributes:
        counts: frame from `storage.record.queries.seeds.pair_counts`.
        iterations: iterations that were read.
    """

    counts: pd.DataFrame
    iterations: list[int]


@dataclass(frozen=True)
class SeedsView:
    """A run's frames; see storage/record/queries/seeds.py for their columns.

    Attributes:
        pairs: pairs of all iterations.
        decisions: the newest event of kind `DECISION_KIND`, if possible with a reason; empty without any.
    """

    pairs: Pairs
    drafts: pd.DataFrame
    prompts: pd.DataFrame
    alerts: pd.DataFrame
    decisions: pd.DataFrame


def load_seeds(home: Path, view: RunView) -> SeedsView:
    """Return the page's data of one run; it is read again after each new iteration or event.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load(home, view.row.run_id, view.newest)


def load_pairs(home: Path, view: RunView, first: int, last: int) -> Pairs:
    """Return stale against fresh scores of iterations `first` to `last`; if many, of evenly spread ones.

    Args:
        home: home that holds the runs.
        view: the run.
        first: first iteration, from 1 on.
        last: last iteration.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load_pairs(home, view.row.run_id, first, last, view.newest)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def load_pictures(home: Path, run_id: str, prompt_id: int, iteration: int) -> pd.DataFrame:
    """Return a prompt's best and worst images of the latest iterations.

    Args:
        home: home that holds the runs.
        run_id: the run.
        prompt_id: identifier of the prompt.
        iteration: iteration of the newest image; part of the cache's key.

    Raises:
        StorageError: a file of the record is damaged.
    """
    with Records(Home(home)).reading(run_id) as connection:
        return seed_queries.best_and_worst(connection, run_id, prompt_id, _PICTURED_ITERATIONS)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load(home: Path, run_id: str, newest: Newest) -> SeedsView:
    """Return the page's data; `newest` is part of the cache's key, here and below."""
    with Records(Home(home)).reading(run_id) as connection:
        return read_seeds(connection, run_id)


def read_seeds(connection: RecordConnection, run_id: str) -> SeedsView:
    """Return the page's data of one run, from an open connection."""
    pairs = read_pairs(connection, run_id, 0, None)
    return SeedsView(
        pairs=pairs,
        drafts=seed_queries.drafts_by_prompt(connection, run_id, pairs.iterations),
        prompts=seed_queries.pictured_prompts(connection, run_id),
        alerts=queries.events(connection, run_id, _ALERTS, ALERT_KINDS),
        decisions=_decision(queries.events(connection, run_id, kinds=(DECISION_KIND,))),
    )


def _decision(events: pd.DataFrame) -> pd.DataFrame:
    """Return the newest event with a reason, which repeated decisions lack; without any, the newest."""
    messages = enumerate(events["message"].tolist())
    newest = next((place for place, message in messages if not message.endswith(AS_RECORDED)), 0)
    return events.iloc[newest : newest + 1]


def read_pairs(connection: RecordConnection, run_id: str, first: int, last: int | None) -> Pairs:
    """Return stale against fresh scores of some iterations, from an open connection.

    Args:
        connection: connection to the record.
        run_id: the run.
        first: first iteration.
        last: last iteration; None for all.
    """
    chosen = seed_queries.spread_iterations(connection, run_id, MOST_ITERATIONS, first, last)
    return Pairs(seed_queries.pair_counts(connection, run_id, chosen), chosen)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_pairs(home: Path, run_id: str, first: int, last: int, newest: Newest) -> Pairs:
    with Records(Home(home)).reading(run_id) as connection:
        return read_pairs(connection, run_id, first, last)
