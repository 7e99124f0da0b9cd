"""The data of the page Spot beyond the run's own figures: its ledger, and the work of every device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from storage.home import Home
from storage.ledger.ledger import Ledger, read_ledger
from storage.record.queries import devices as device_queries
from storage.record.queries import runs as run_queries
from storage.record.reading import RecordConnection, Records
from ui.data.devices import MOST_INTERVALS, DeviceCourse
from ui.data.run import Newest, RunView

_MOST_EVENTS = 300
_MOST_GROUPS = 1000
_MOST_DECISIONS = 200
_MOST_BARS = 100  # of a market's utilisation


@dataclass(frozen=True)
class SpotView:
    """A run's ledger and frames; see storage/record/queries/devices.py for the columns.

    Attributes:
        iterations: iterations with recorded device time, in order; 0 is the evaluation before training.
        decisions: decisions on the number of spot devices, from `storage/record/queries/runs.py::events`.
    """

    ledger: Ledger
    utilisation: pd.DataFrame
    iterations: list[int]
    decisions: pd.DataFrame


def load_spot(home: Path, view: RunView) -> SpotView:
    """Return the page's data of one run; it is read again after each new record.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load_spot(home, view.row.run_id, view.newest)


def load_course(home: Path, view: RunView, first: int, last: int) -> DeviceCourse:
    """Return the work of the devices in iterations `first` to `last`.

    Args:
        home: home that holds the runs.
        view: the run.
        first: first iteration; 0 is the evaluation before training.
        last: last iteration.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load_course(home, view.row.run_id, first, last, view.newest)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_spot(home: Path, run_id: str, newest: Newest) -> SpotView:
    """Return the page's data; `newest` is part of the cache's key, here and below."""
    with Records(Home(home)).reading(run_id) as connection:
        return read_spot(connection, run_id)


def read_spot(connection: RecordConnection, run_id: str) -> SpotView:
    """Return the page's data of one run, from an open connection."""
    recorded = device_queries.recorded_iterations(connection, run_id)
    return SpotView(
        ledger=read_ledger(connection, run_id),
        utilisation=device_queries.utilisation(connection, run_id, _MOST_BARS),
        iterations=[int(iteration) for iteration in recorded["iteration"]],
        decisions=run_queries.events(connection, run_id, _MOST_DECISIONS, ("capacity",)),
    )


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_course(home: Path, run_id: str, first: int, last: int, newest: Newest) -> DeviceCourse:
    with Records(Home(home)).reading(run_id) as connection:
        return read_course(connection, run_id, first, last)


def read_course(connection: RecordConnection, run_id: str, first: int, last: int) -> DeviceCourse:
    """Return the work of the devices in some iterations, from an open connection.

    Args:
        connection: connection to the record.
        run_id: the run.
        first: first iteration; 0 is the evaluation before training.
        last: last iteration.
    """
    return DeviceCourse(
        intervals=device_queries.device_intervals(connection, run_id, first, last, MOST_INTERVALS),
        events=device_queries.device_events(connection, run_id, first, last, _MOST_EVENTS),
        groups=device_queries.sequence_groups(connection, run_id, first, last, _MOST_GROUPS),
        degrees=device_queries.degree_times(connection, run_id, first, last),
    )
