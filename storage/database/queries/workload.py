"""What a recorded run says of its workload: device time and samples of each iteration, starts and loads.

Like storage/database/queries/runs.py: each function takes an open connection and gives a pandas frame.
"""

from __future__ import annotations

import duckdb
import pandas as pd


def iteration_work(connection: duckdb.DuckDBPyConnection, run_id: str) -> pd.DataFrame:
    """The kept iterations in order.

    Columns: iteration, samples (rolled out), rollout_device_s, train_device_s, reward_s (of the phase; NaN
    where it was not recorded).
    """
    return connection.execute(
        """
        WITH own AS (SELECT * FROM costs WHERE run_id = $run AND phase = 'iteration'),
        done AS (
            SELECT iteration, count(*) AS samples FROM samples WHERE run_id = $run GROUP BY iteration
        )
        SELECT iteration, samples,
            coalesce(sum(device_s) FILTER (state = 'rollout'), 0) AS rollout_device_s,
            coalesce(sum(device_s) FILTER (state = 'train'), 0) AS train_device_s,
            (SELECT value FROM iteration_metrics m
                WHERE m.run_id = $run AND m.iteration = own.iteration AND name = 'reward_s') AS reward_s
        FROM own JOIN done USING (iteration) GROUP BY iteration, samples ORDER BY iteration
        """,
        {"run": run_id},
    ).df()


def changes_of_state(connection: duckdb.DuckDBPyConnection, run_id: str) -> pd.DataFrame:
    """How long devices loaded weights and formed groups, a row each time. Columns: state, lasted_s.

    The first iteration's are left out: its loading is that of the start.
    """
    return connection.execute(
        "SELECT state, ended_at - started_at AS lasted_s FROM worker_states WHERE run_id = ? "
        "AND phase = 'iteration' AND iteration > 1 AND state IN ('load', 'regroup') "
        "ORDER BY started_at, worker",
        [run_id],
    ).df()


def first_start_s(connection: duckdb.DuckDBPyConnection, run_id: str) -> float | None:
    """Seconds from the run's beginning to its first device that had loaded; None where none was recorded."""
    row = connection.execute(
        "SELECT min(happened_at) - (SELECT created_at FROM runs WHERE run_id = $run) FROM device_events "
        "WHERE run_id = $run AND kind = 'joined'",
        {"run": run_id},
    ).fetchone()
    return None if row is None or row[0] is None else max(0.0, float(row[0]))
