"""The ledger of a run, cached for pages that need nothing else about its devices, and its bill as rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from storage.home import Home
from storage.ledger.ledger import Ledger, read_ledger
from storage.record.reading import Records
from ui.data.run import Newest, RunView


def load_ledger(home: Path, view: RunView) -> Ledger:
    """Return the ledger of a run's paid time; it is read again after each new record.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load(home, view.row.run_id, view.newest)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load(home: Path, run_id: str, newest: Newest) -> Ledger:
    """Return the same; `newest` is part of the cache's key."""
    with Records(Home(home)).reading(run_id) as connection:
        return read_ledger(connection, run_id)


def bill_entries(ledger: Ledger) -> pd.DataFrame:
    """Return the bill in full detail: columns phase, market, state, device_s, usd."""
    return pd.DataFrame(
        [(e.phase, e.market, e.state, e.spent.device_s, e.spent.usd) for e in ledger.entries],
        columns=["phase", "market", "state", "device_s", "usd"],
    )
