"""The work of devices over some iterations, recorded or simulated: the data of their time lines."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

MOST_INTERVALS = 3000
"""The most intervals in a time line; more would make the browser slow."""


@dataclass(frozen=True)
class DeviceCourse:
    """The work of the devices in some iterations; see storage/record/queries/devices.py for the columns."""

    intervals: pd.DataFrame
    events: pd.DataFrame
    groups: pd.DataFrame
    degrees: pd.DataFrame
