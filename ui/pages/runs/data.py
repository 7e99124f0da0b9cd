"""What the page of all runs reads, cached; and runs that differ in the seed alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
import streamlit as st

from storage.database.database import Database
from storage.database.queries import comparisons as comparison_queries
from storage.home import Home
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
        return comparison_queries.run_table(connection, MOST_RUNS)


@st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)
def load_courses(home: Path, run_ids: tuple[str, ...]) -> pd.DataFrame:
    """The held-out scores of several runs; see `storage.database.queries.comparisons.score_courses`.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    with Database(Home(home).database).reading() as connection:
        return comparison_queries.score_courses(connection, run_ids)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def load_seed_courses(home: Path, run_id: str, newest: float) -> tuple[dict[int, str], pd.DataFrame]:
    """The runs that differ from one in the seed alone, by seed, and their scores.

    Args:
        home: where the database lies.
        run_id: the run.
        newest: when its latest evaluation ended; there to be part of the cache's key.

    Raises:
        StorageError: the database stayed locked, or is of another version.
    """
    with Database(Home(home).database).reading() as connection:
        return read_seed_courses(connection, run_id)


def read_seed_courses(
    connection: duckdb.DuckDBPyConnection, run_id: str
) -> tuple[dict[int, str], pd.DataFrame]:
    """The same from an open connection; no scores where the run is alone."""
    seeds = comparison_queries.runs_of_other_seeds(connection, run_id)
    others = list(seeds.values()) if len(seeds) > 1 else []
    return seeds, comparison_queries.score_courses(connection, others)
