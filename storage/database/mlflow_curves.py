"""A run's curves from MLflow's sqlite file: what is left of iterations that no journal or checkpoint has."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from storage.home import Home
from storage.tracking.mlflow_run import RUN_TAG
from storage.tracking.names import recorded_name

_EVALUATION = "evaluation_"


@dataclass(frozen=True)
class MlflowCurves:
    """What MLflow holds of a run; empty where it holds nothing.

    Attributes:
        started_at: when the run began, in Unix seconds; None where MLflow does not know the run.
        iterations: iteration -> when it was logged, in Unix seconds, and its figures.
        evaluations: iteration -> when it was logged, mean held-out score, share of exact images.
    """

    started_at: float | None = None
    iterations: dict[int, tuple[float, dict[str, float]]] = field(default_factory=dict)
    evaluations: dict[int, tuple[float, float, float]] = field(default_factory=dict)


def read_curves(home: Home, run_id: str) -> MlflowCurves:
    """Read them, without MLflow; a file that is missing or damaged holds nothing."""
    path = home.path / "mlflow.db"
    if not path.is_file():
        return MlflowCurves()
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            runs = connection.execute(
                "SELECT run_uuid, start_time FROM runs JOIN tags USING (run_uuid) WHERE tags.key = ? "
                "AND tags.value = ?",
                [RUN_TAG, run_id],
            ).fetchall()
            if not runs:
                return MlflowCurves()
            rows = connection.execute(
                "SELECT key, value, timestamp, step FROM metrics WHERE run_uuid = ? AND NOT is_nan "
                "ORDER BY timestamp",  # of an iteration that was done again, the later figures count
                [runs[0][0]],
            ).fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return MlflowCurves()
    curves = MlflowCurves(runs[0][1] / 1000)
    held_out: dict[int, dict[str, float]] = {}
    for logged, value, at_ms, step in rows:
        name = recorded_name(logged)
        if name is None:
            continue
        if name.startswith(_EVALUATION):
            held_out.setdefault(step, {"at_s": at_ms / 1000})[name] = value
        else:
            figures = curves.iterations.get(step, (0.0, {}))[1]
            curves.iterations[step] = (at_ms / 1000, {**figures, name: value})
    for step, values in held_out.items():
        if {"evaluation_score", "evaluation_exact"} <= values.keys():
            curves.evaluations[step] = (
                values["at_s"],
                values["evaluation_score"],
                values["evaluation_exact"],
            )
    return curves
