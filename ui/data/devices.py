"""What devices did over some iterations, recorded or simulated: what their time lines are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

MOST_INTERVALS = 3000
"""Intervals that a time line draws at most; more would make the browser slow."""


@dataclass(frozen=True)
class DeviceCourse:
    """What the devices did in some iterations; see storage/record/queries/devices.py for the columns."""

    intervals: pd.DataFrame
    events: pd.DataFrame
    groups: pd.DataFrame
    degrees: pd.DataFrame
