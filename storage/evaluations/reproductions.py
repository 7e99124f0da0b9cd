"""Runs that were done again: rows written after each, and read by the dashboard."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from storage.errors import RunNotFoundError
from storage.home import Home
from storage.record.reading import RecordConnection, Records
from storage.record.run_folder import refusals, write_json

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["recorded", "identical", "within", "drifted", "failed"]
"""`recorded`: the first of its series, compared with nothing. `within`: other bits on another kind of
device, or where measured times chose degrees, but scores within the interval."""

_SHOWN = (
    "verdict", "message", "series", "reference", "run_id", "score_was", "score_is", "difference", "low",
    "high", "differences",
)  # fmt: skip


@dataclass(frozen=True)
class Reproduction:
    """One run done again.

    Attributes:
        series: what is done again and again: a preset, a run, a file.
        how: `train` or `evaluate`.
        reference: the run that was done again.
        run_id: the run that did it; None where none was made.
        started_at, ended_at: Unix seconds.
        message: the verdict in words.
        score_was, score_is: mean held-out score of the reference and of this run.
        difference, low, high: of paired held-out scores, this run minus the reference; its 95 % interval.
        differences: what differs, each with `kind` (versions, device, configuration, data, code or result),
            `what`, `was` and `is`.
    """

    reproduction_id: str
    series: str
    how: str
    reference: str
    run_id: str | None
    started_at: float
    ended_at: float
    verdict: Verdict
    message: str
    score_was: float | None = None
    score_is: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    differences: list[dict[str, str]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Its named results, as a command prints them."""
        return {name: getattr(self, name) for name in _SHOWN}


def write_reproduction(home: Home, done: Reproduction) -> None:
    """Write one; writing the same again changes nothing.

    Raises:
        StorageError: the disk refuses, or a file is damaged.
    """
    with refusals(f"reproduction {done.reproduction_id} into {home.reproductions}"):
        home.reproductions.mkdir(mode=0o700, exist_ok=True)
        write_json(home.reproductions / f"{quote(done.reproduction_id, safe='')}.json", asdict(done))


def reference_run_of(home: Home, series: str) -> str | None:
    """The run that a series is compared with: the latest that was recorded for it; None where none was.

    Raises:
        StorageError: the disk refuses, or a file is damaged.
    """
    with Records(home).reading() as connection:
        row = connection.execute(
            "SELECT run_id FROM reproductions WHERE series = ? AND verdict = 'recorded' "
            "ORDER BY started_at DESC LIMIT 1",
            [series],
        ).fetchone()
    return row[0] if row else None


def reproductions(connection: RecordConnection, limit: int = 500) -> pd.DataFrame:
    """The latest reproductions, newest first; all columns of the table, `differences` as JSON text."""
    return connection.execute(
        "SELECT * FROM reproductions ORDER BY started_at DESC, reproduction_id LIMIT ?", [limit]
    ).df()


def reproduction_of(home: Home, reproduction_id: str) -> Reproduction:
    """One reproduction.

    Raises:
        RunNotFoundError: there is none of that identifier.
        StorageError: the disk refuses, or a file is damaged.
    """
    with Records(home).reading() as connection:
        cursor = connection.execute(
            "SELECT * FROM reproductions WHERE reproduction_id = ?", [reproduction_id]
        )
        names = [column[0] for column in cursor.description or []]
        row = cursor.fetchone()
    if row is None:
        raise RunNotFoundError(f"no reproduction {reproduction_id!r}; `spotlight reproduce RUN` makes one")
    values: dict[str, Any] = dict(zip(names, row, strict=True))
    return Reproduction(**{**values, "differences": json.loads(values["differences"])})
