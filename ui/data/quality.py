"""The look of a run's held-out images: the course of their figures, and the verdict on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pandas as pd
import streamlit as st

from storage.evaluations.quality import JUDGE, PART, QUALITY, QualityVerdict, quality_verdict
from storage.home import Home
from storage.record.queries.images import figure_means, paired_figures
from storage.record.reading import RecordConnection, Records
from ui.data.run import RunView


@dataclass(frozen=True)
class QualityView:
    """The look of a run's held-out images.

    Attributes:
        means: one row per evaluation; see `storage.record.queries.images.figure_means`.
        verdict: the latest evaluation against the untouched model; None before there are two.
    """

    means: pd.DataFrame = field(default_factory=lambda: pd.DataFrame({"iteration": []}))
    verdict: QualityVerdict | None = None

    @property
    def figures(self) -> list[str]:
        """The figures of quality that were measured, in display order."""
        return [name for name in QUALITY if name in self.means]

    @property
    def judges(self) -> pd.DataFrame | None:
        """Iteration and mean of the second judge after it; None if there is no second judge."""
        if JUDGE not in self.means:
            return None
        return cast("pd.DataFrame", self.means[["iteration", JUDGE]].dropna())

    @property
    def parts(self) -> list[str]:
        """The parts of the score, if it is a sum."""
        return [str(name).removeprefix(PART) for name in self.means if str(name).startswith(PART)]


def load_quality(home: Path, view: RunView) -> QualityView:
    """Return the quality of a run; it is read again after each evaluation.

    Raises:
        StorageError: a file of the record is damaged.
    """
    return _load_quality(home, view.row.run_id, view.newest.evaluation_at)


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def _load_quality(home: Path, run_id: str, evaluation_at: float) -> QualityView:
    """Return the same; `evaluation_at` is part of the cache's key."""
    with Records(Home(home)).reading(run_id) as connection:
        return read_quality(connection, run_id)


def read_quality(connection: RecordConnection, run_id: str) -> QualityView:
    """Return the same from an open connection."""
    pairs = paired_figures(connection, run_id)
    return QualityView(figure_means(connection, run_id), quality_verdict(pairs))
