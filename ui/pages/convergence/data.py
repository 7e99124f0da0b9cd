"""The data of the page Convergence: images before and after, and the spread of a curve over run seeds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from storage.evaluations.figures import over_seeds
from storage.home import Home
from storage.record.queries import comparisons
from storage.record.queries import runs as queries
from storage.record.reading import Records
from ui.charts.layout import Measure
from ui.data.run import RunView


def load_images(home: Path, view: RunView) -> pd.DataFrame:
    """Return the gallery, cached per evaluation; see `storage.record.queries.runs.images_before_after`.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load_images(home, view.row.run_id, view.newest.evaluation_at)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_images(home: Path, run_id: str, evaluation_at: float) -> pd.DataFrame:
    """Return the same; `evaluation_at` is part of the cache's key."""
    with Records(Home(home)).reading(run_id) as connection:
        return queries.images_before_after(connection, run_id)


def load_seed_courses(home: Path, view: RunView) -> tuple[dict[int, str], pd.DataFrame]:
    """Return the runs that differ from one only in the seed, by seed, and their scores.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load_seed_courses(home, view.row.run_id, view.newest.evaluation_at)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_seed_courses(home: Path, run_id: str, evaluation_at: float) -> tuple[dict[int, str], pd.DataFrame]:
    """Return the same; `evaluation_at` is part of the cache's key."""
    return read_seed_courses(Records(Home(home)), run_id)


def read_seed_courses(records: Records, run_id: str) -> tuple[dict[int, str], pd.DataFrame]:
    """Return the same without a cache; without scores if the run is alone."""
    with records.reading() as connection:
        alike = comparisons.alike_but_seed(connection, run_id)
    # By name, so that the files of all other runs stay closed.
    with records.reading(*(alike or [run_id])) as connection:
        seeds = comparisons.runs_of_other_seeds(connection, run_id)
        others = list(seeds.values()) if len(seeds) > 1 else []
        return seeds, comparisons.score_courses(connection, others)


def mean_over_seeds(courses: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the mean over runs at each iteration that all of them evaluated, and its 95 % interval.

    The interval is Student's, so with two runs it is wide; it is cut at 0 and 1, where scores end.

    Args:
        courses: frame from `comparisons.score_courses`, of runs with different seeds.
        measure: figure to average.

    Returns:
        Columns iteration, mean, low, high, seeds; empty if fewer than two runs share an iteration.
    """
    runs = len(set(courses["run_id"].tolist()))
    rows = []
    for iteration, part in courses.groupby("iteration", sort=True):
        if runs < 2 or len(part) < runs:
            continue
        found = over_seeds(part[measure].tolist())
        rows.append((iteration, found.mean, found.low, found.high, runs))
    return pd.DataFrame(rows, columns=["iteration", "mean", "low", "high", "seeds"])
