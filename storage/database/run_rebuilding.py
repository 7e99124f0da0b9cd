"""Makes one run's rows again: from its journal, from the records in its checkpoints, from MLflow's curves."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import duckdb
from pydantic import ValidationError

from storage.checkpoints import CheckpointStore
from storage.database.journal import Journal, JournalEntry
from storage.database.mlflow_curves import MlflowCurves, read_curves
from storage.database.record_writing import discard_iterations, write_evaluation, write_iteration
from storage.database.records import IterationRecord, evaluation_from_json, record_from_json
from storage.home import Home

_KEEP = 1  # a store of checkpoints that is only read keeps what is there

_UNKNOWN_PROCESS = -1


def restore_run(
    connection: duckdb.DuckDBPyConnection, home: Home, run_id: str, after_bytes: int
) -> tuple[int | None, list[str]]:
    """Write the rows of a run, inside the caller's transaction.

    Args:
        connection: to the database; it has what the first bytes of the journal say already.
        home: where the run's journal and checkpoints lie.
        run_id: the run.
        after_bytes: how many bytes of its journal those are.

    Returns:
        How many iterations it has rows of now, None where nothing says what it was; and what could not be
        recovered, a line each.
    """
    content = Journal(home.journal(run_id)).read(after_bytes)
    unread = content.damaged + sum(not _replayed(connection, run_id, entry) for entry in content.entries)
    losses = [f"run {run_id}: damaged lines of its journal ({unread})"] if unread else []
    config = _from_checkpoints(connection, home, run_id)
    if not _has_row(connection, run_id):
        if config is None:
            if home.journal(run_id).exists() or CheckpointStore(home.checkpoints(run_id), _KEEP).iterations():
                losses.append(f"run {run_id}: neither its journal nor a whole checkpoint tells what it was")
            return None, losses
        curves = read_curves(home, run_id)
        _from_curves(connection, run_id, curves)
        _enter(connection, run_id, config, curves)
        losses.append(f"run {run_id}: its versions, digests of its input files, and events")
    return _missing(connection, run_id, losses)


def _replayed(connection: duckdb.DuckDBPyConnection, run_id: str, entry: JournalEntry) -> bool:
    """Do again what a line of the journal says; False where it cannot be understood."""
    values = entry.values
    try:
        match entry.kind:
            case "run":
                _put(connection, "runs", values)
            case "iteration":
                write_iteration(connection, record_from_json(values))
            case "evaluation":
                write_evaluation(connection, evaluation_from_json(values))
            case "event":
                event = {"run_id": run_id, **values, "kind": values["event"]}
                _put(connection, "events", {name: event[name] for name in event if name != "event"})
            case "notes":
                _put(connection, "run_notes", values)
            case "link":
                _put(connection, "run_links", values)
            case "discard":
                discard_iterations(connection, run_id, values["after"])
            case _:
                return False
    except (ValidationError, KeyError):  # of a version that wrote other values
        return False
    return True


def _put(connection: duckdb.DuckDBPyConnection, table: str, values: dict[str, Any]) -> None:
    places = ", ".join("?" * len(values))
    connection.execute(
        f"INSERT OR REPLACE INTO {table} ({', '.join(values)}) VALUES ({places})", list(values.values())
    )


def _from_checkpoints(
    connection: duckdb.DuckDBPyConnection, home: Home, run_id: str
) -> dict[str, Any] | None:
    """Write the iterations that only checkpoints have; the newest one's configuration."""
    there = set(_iterations(connection, run_id))
    config: dict[str, Any] | None = None
    for iteration, values, config_there in CheckpointStore(home.checkpoints(run_id), _KEEP).records():
        config = config_there
        if iteration in there:
            continue
        try:
            record = record_from_json(values)
        except ValidationError:
            continue
        if record.run_id == run_id:
            write_iteration(connection, record)
    return config


def _from_curves(connection: duckdb.DuckDBPyConnection, run_id: str, curves: MlflowCurves) -> None:
    """Write the figures of iterations and evaluations of which nothing else is left."""
    there = set(_iterations(connection, run_id))
    for iteration, (ended_at, metrics) in curves.iterations.items():
        if iteration not in there:
            started_at = ended_at - metrics.get("iteration_s", 0.0)
            write_iteration(
                connection, IterationRecord(run_id, iteration, iteration, started_at, ended_at, metrics)
            )
    for iteration, (ended_at, score, exact) in curves.evaluations.items():
        connection.execute(
            "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)",
            [run_id, iteration, iteration, ended_at, ended_at, score, exact],
        )


def _enter(
    connection: duckdb.DuckDBPyConnection, run_id: str, config: dict[str, Any], curves: MlflowCurves
) -> None:
    """Write the row of a run that has no journal: finished only where its last evaluation is there."""
    times = connection.execute(
        "SELECT min(started_at), max(ended_at) FROM iterations WHERE run_id = ?", [run_id]
    ).fetchall()
    began_at, ended_at = times[0]
    evaluated = connection.execute(
        "SELECT 1 FROM evaluations WHERE run_id = ? AND iteration = ?", [run_id, config.get("iterations")]
    ).fetchone()
    status = "finished" if evaluated else "interrupted"
    error = None if evaluated else "its row was made again from its checkpoints"
    _put(
        connection, "runs",
        {
            "run_id": run_id, "name": config.get("name", run_id), "status": status,
            "created_at": curves.started_at or began_at or 0.0, "ended_at": ended_at,
            "host": socket.gethostname(), "pid": _UNKNOWN_PROCESS, "process_started_at": None,
            "config": json.dumps(config), "environment": "{}",
            "summary": "{}", "error": error,
        },
    )  # fmt: skip


def _missing(connection: duckdb.DuckDBPyConnection, run_id: str, losses: list[str]) -> tuple[int, list[str]]:
    """How many iterations there are; and, added to the losses, which are not, or only as figures."""
    there = _iterations(connection, run_id)
    gaps = [f"{before + 1}" if after - before == 2 else f"{before + 1} to {after - 1}"
            for before, after in pairwise([0, *there]) if after - before > 1]  # fmt: skip
    if gaps:
        losses.append(f"run {run_id}: iterations {', '.join(gaps)}")
    bare = connection.execute(
        "SELECT count(*) FROM iterations ANTI JOIN samples USING (run_id, iteration) WHERE run_id = ?",
        [run_id],
    ).fetchall()[0][0]
    if bare:
        losses.append(
            f"run {run_id}: samples, seeds and device times of iterations whose curves remain ({bare})"
        )
    return len(there), losses


def _iterations(connection: duckdb.DuckDBPyConnection, run_id: str) -> Sequence[int]:
    rows = connection.execute(
        "SELECT iteration FROM iterations WHERE run_id = ? ORDER BY iteration", [run_id]
    ).fetchall()
    return [iteration for (iteration,) in rows]


def _has_row(connection: duckdb.DuckDBPyConnection, run_id: str) -> bool:
    return connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [run_id]).fetchone() is not None
