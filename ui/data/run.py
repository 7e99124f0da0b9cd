"""Everything a page shows of one run, read in one opening of the database and cached for 2 s."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from storage.database.database import Database
from storage.database.queries import runs as queries
from storage.database.run_store import RunRow, RunStore, run_is_alive
from storage.home import Home

CACHE_S = 2
"""Age at which cached figures are read again; several open tabs cost one reading."""


@dataclass(frozen=True)
class Change:
    """The mean difference of the held-out scores between first and latest evaluation.

    Attributes:
        mean: after minus before, over the same prompts and seeds.
        margin: half the width of its 95 % interval.
        images: pairs compared.
    """

    mean: float
    margin: float
    images: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.images > 1 and abs(self.mean) > self.margin


@dataclass(frozen=True)
class RunView:
    """One run's frames; see storage/database/queries/runs.py for their columns.

    Attributes:
        alive: whether its process is still there.
        change: None before there are two evaluations.
    """

    row: RunRow
    alive: bool
    scores: pd.DataFrame
    metrics: pd.DataFrame
    cost: pd.DataFrame
    cost_by_state: pd.DataFrame
    events: pd.DataFrame
    change: Change | None

    @property
    def is_live(self) -> bool:
        """Whether more is to come."""
        return self.row.status == "running" and self.alive

    @property
    def elapsed_s(self) -> float:
        """Seconds at work, up to the last thing recorded."""
        return max([0.0, *self.scores["elapsed_s"], *self.metrics["elapsed_s"]])

    @property
    def paid_usd(self) -> float:
        """The bill so far, in dollars."""
        return self.paid("reserved_usd") + self.paid("spot_usd")

    def metric(self, name: str) -> np.ndarray:
        """A metric's course over the iterations; NaN where one has none, throughout where none has it."""
        if name not in self.metrics:
            return np.full(len(self.metrics), np.nan)
        return self.metrics[name].to_numpy(dtype=float)

    def usd_at(self, iterations: np.ndarray) -> np.ndarray:
        """Dollars paid up to the end of each of these iterations, evaluations included."""
        paid = (self.cost["reserved_usd"] + self.cost["spot_usd"]).to_numpy(dtype=float)
        place = np.searchsorted(self.cost["iteration"].to_numpy(), iterations, side="right")
        return np.concatenate(([0.0], paid))[place]

    def setting(self, section: str, name: str) -> Any:
        """A setting as the run stored it; None where it has none of that name (another version's)."""
        stored = json.loads(self.row.config_json)
        part = stored.get(section) if section else stored
        return part.get(name) if isinstance(part, dict) else None

    def paid(self, column: str) -> float:
        """Total of a column of `cost` (they are cumulated)."""
        return 0.0 if self.cost.empty else float(self.cost[column].iloc[-1])


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def load_overview(home: Path) -> pd.DataFrame:
    """All runs, newest first."""
    with Database(Home(home).database).reading() as connection:
        return queries.run_overview(connection)


@st.cache_data(ttl=CACHE_S, max_entries=16, show_spinner=False)
def load_run(home: Path, run_id: str) -> RunView:
    """What the page shows of one run.

    Raises:
        RunNotFoundError: there is none of that identifier.
        StorageError: the database stayed locked, or is of another version.
    """
    return read_run(RunStore(Home(home)), run_id)


def read_run(store: RunStore, run_id: str) -> RunView:
    """The same, read now: for what is no page.

    Raises:
        RunNotFoundError: there is none of that identifier.
        StorageError: the database stayed locked, or is of another version.
    """
    with store.database.reading() as connection:
        row = store.run(run_id)  # inside: opening the file is most of the work of a small run, and is shared
        return RunView(
            row=row,
            alive=run_is_alive(row),
            scores=queries.score_curve(connection, run_id),
            metrics=queries.metric_curves(connection, run_id),
            cost=queries.cost_by_iteration(connection, run_id),
            cost_by_state=queries.cost_by_state(connection, run_id),
            events=queries.events(connection, run_id),
            change=_change(queries.paired_scores(connection, run_id)),
        )


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def load_images(home: Path, run_id: str, evaluation: int) -> pd.DataFrame:
    """The gallery; `evaluation` (the latest one's iteration) is there to be part of the cache's key."""
    with Database(Home(home).database).reading() as connection:
        return queries.images_before_after(connection, run_id)


def _change(pairs: pd.DataFrame) -> Change | None:
    if pairs.empty:
        return None
    difference = (pairs["score_after"] - pairs["score_before"]).to_numpy(dtype=float)
    error = float(difference.std(ddof=1)) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return Change(float(difference.mean()), 1.96 * float(error), len(difference))
