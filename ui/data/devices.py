"""The work of a run's devices, recorded or simulated, and its bill as rows."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from storage.record.ledger import Ledger
from storage.record.queries import devices as device_queries
from storage.record.reading import RecordConnection

_MOST_EVENTS = 300
_MOST_GROUPS = 1000

MOST_BARS = 100  # of a market's utilisation
MOST_INTERVALS = 3000  # most intervals in a time line; more would make the browser slow


@dataclass(frozen=True)
class DeviceCourse:
    """The work of the devices in some iterations; see storage/record/queries/devices.py for the columns."""

    intervals: pd.DataFrame
    events: pd.DataFrame
    groups: pd.DataFrame
    degrees: pd.DataFrame


def bill_entries(ledger: Ledger) -> pd.DataFrame:
    """Return the bill in full detail: columns phase, market, state, device_s, usd."""
    return pd.DataFrame(
        [(e.phase, e.market, e.state, e.spent.device_s, e.spent.usd) for e in ledger.entries],
        columns=["phase", "market", "state", "device_s", "usd"],
    )


def read_course(connection: RecordConnection, run_id: str, first: int, last: int) -> DeviceCourse:
    """Return the work of the devices in some iterations; iteration 0 is the evaluation before training."""
    return DeviceCourse(
        intervals=device_queries.device_intervals(connection, run_id, first, last, MOST_INTERVALS),
        events=device_queries.device_events(connection, run_id, first, last, _MOST_EVENTS),
        groups=device_queries.sequence_groups(connection, run_id, first, last, _MOST_GROUPS),
        degrees=device_queries.degree_times(connection, run_id, first, last),
    )
