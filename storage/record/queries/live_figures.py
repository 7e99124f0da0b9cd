"""Runs in progress, for monitoring: progress, figures, devices and dollars of each."""

from __future__ import annotations

import json
from dataclasses import dataclass

from storage.record.ledger import judge_usd
from storage.record.reading import RecordConnection


@dataclass(frozen=True)
class LiveRun:
    """A run according to the current record.

    Attributes:
        planned: number of iterations of its settings.
        iteration: newest committed iteration; 0 before the first.
        newest_at: end of its newest record, or its creation (Unix seconds of its driver's machine).
        score, exact: means of the newest held-out evaluation; None before the first.
        metrics: figures of the newest iteration, by name; phases end in `_s`.
        devices: mean number of devices by market and state, over the newest iteration.
        spent, device_events: device-seconds and dollars by market and state, lost work included, and number
            of each kind by market, since the start.
    """

    run_id: str
    name: str
    status: str
    planned: int
    iteration: int
    newest_at: float
    score: float | None
    exact: float | None
    metrics: dict[str, float]
    devices: dict[tuple[str, str], float]
    spent: dict[tuple[str, str], tuple[float, float]]
    judge_usd: float
    device_events: dict[tuple[str, str], int]


def live_runs(connection: RecordConnection) -> list[LiveRun]:
    """Return the runs marked as running; if there is none, the newest one, so that its end is seen."""
    rows = connection.execute(
        """
        WITH latest AS (
            SELECT run_id FROM runs WHERE status <> 'simulated' ORDER BY created_at DESC, run_id DESC LIMIT 1
        )
        SELECT run_id, name, status, created_at, config FROM runs
        WHERE status = 'running'
            OR (run_id IN (FROM latest) AND NOT EXISTS (FROM runs WHERE status = 'running'))
        ORDER BY created_at, run_id
        """
    ).fetchall()
    return [_live_run(connection, *row) for row in rows]


def _live_run(
    connection: RecordConnection, run_id: str, name: str, status: str, created_at: float, config: str
) -> LiveRun:
    run = {"run": run_id}
    newest = connection.execute(
        "SELECT iteration, started_at, ended_at FROM iterations WHERE run_id = $run "
        "ORDER BY iteration DESC LIMIT 1",
        run,
    ).fetchone()
    iteration, _, ended_at = newest or (0, created_at, created_at)
    evaluation = connection.execute(
        "SELECT score, exact, ended_at FROM evaluations WHERE run_id = $run ORDER BY iteration DESC LIMIT 1",
        run,
    ).fetchone()
    score, exact, evaluated_at = evaluation or (None, None, created_at)
    metrics = connection.execute(
        "SELECT name, value FROM iteration_metrics WHERE run_id = $run AND iteration = $iteration",
        run | {"iteration": iteration},
    ).fetchall()
    spent = connection.execute(
        "SELECT market, state, sum(device_s), sum(usd) FROM costs WHERE run_id = $run GROUP BY ALL", run
    ).fetchall()
    events = connection.execute(
        "SELECT market, kind, count(*) FROM device_events WHERE run_id = $run GROUP BY ALL", run
    ).fetchall()
    return LiveRun(
        run_id, name, status, int(json.loads(config).get("iterations", 0)), iteration,
        max(ended_at, evaluated_at), score, exact, dict(metrics), _devices(connection, run_id, iteration),
        {(market, state): (device_s, usd) for market, state, device_s, usd in spent},
        judge_usd(connection, run_id),
        {(market, kind): count for market, kind, count in events},
    )  # fmt: skip


def _devices(connection: RecordConnection, run_id: str, iteration: int) -> dict[tuple[str, str], float]:
    rows = connection.execute(
        """
        WITH own AS (
            SELECT * FROM worker_states
            WHERE run_id = $run AND iteration = $iteration AND phase = 'iteration'
        ), whole AS (SELECT max(ended_at) - min(started_at) AS seconds FROM own)
        SELECT market, state, sum(ended_at - started_at) / (SELECT seconds FROM whole)
        FROM own WHERE (SELECT seconds FROM whole) > 0 GROUP BY market, state
        """,
        {"run": run_id, "iteration": iteration},
    ).fetchall()
    return {(market, state): mean for market, state, mean in rows}
