"""The workload of a recorded run: time and samples of each iteration, starts, loads, evaluations.

Like storage/record/queries/runs.py: each function takes an open connection and returns a pandas frame, or a
list of seconds.
"""

from __future__ import annotations

import pandas as pd

from storage.record.reading import RecordConnection

_PHASES = ("rollout_s", "reward_s", "train_beside_s", "explore_s", "redraft_s", "iteration_s")

# Devices begin by loading their model; later states are numbered from 2.
_NUMBERED = """
    SELECT *, row_number() OVER (PARTITION BY worker ORDER BY started_at) AS number
    FROM worker_states WHERE run_id = $run
"""


def iteration_work(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the kept iterations in order: samples, device time by state, and seconds of the phases.

    `train_beside_s` is training within rollout and reward; a phase that was not recorded is NaN.
    """
    metrics = ", ".join(f"max(value) FILTER (name = '{name}') AS {name}" for name in _PHASES)
    return connection.execute(
        f"""
        WITH own AS (SELECT * FROM costs WHERE run_id = $run AND phase = 'iteration'),
        done AS (
            SELECT iteration, count(*) AS samples FROM samples WHERE run_id = $run GROUP BY iteration
        ),
        timed AS (
            SELECT iteration, {metrics} FROM iteration_metrics WHERE run_id = $run GROUP BY iteration
        )
        SELECT iteration, samples, sum(device_s) AS device_s,
            coalesce(sum(device_s) FILTER (state = 'rollout'), 0) AS rollout_device_s,
            coalesce(sum(device_s) FILTER (state = 'train'), 0) AS train_device_s,
            {", ".join(f"any_value({name}) AS {name}" for name in _PHASES)}
        FROM own JOIN done USING (iteration) LEFT JOIN timed USING (iteration)
        GROUP BY iteration, samples ORDER BY iteration
        """,
        {"run": run_id},
    ).df()


def evaluation_work(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return the evaluations in order. Columns: iteration, images, rollout_device_s."""
    return connection.execute(
        """
        SELECT iteration, (SELECT count(*) FROM evaluation_images i
                WHERE i.run_id = $run AND i.iteration = c.iteration) AS images,
            sum(device_s) FILTER (state = 'rollout') AS rollout_device_s
        FROM costs c WHERE run_id = $run AND phase = 'evaluation' GROUP BY iteration ORDER BY iteration
        """,
        {"run": run_id},
    ).df()


def degree_work(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return device time of generating by number of devices that shared samples, if they worked in groups."""
    return connection.execute(
        """
        SELECT phase, iteration, degree,
            sum(least(s.ended_at, g.ended_at) - greatest(s.started_at, g.started_at)) AS device_s
        FROM worker_states s JOIN sequence_groups g USING (run_id, phase, iteration)
        WHERE run_id = $run AND s.state = 'rollout' AND s.started_at < g.ended_at
            AND g.started_at < s.ended_at AND list_contains(string_split(g.members, '+'), s.worker)
        GROUP BY phase, iteration, degree ORDER BY phase, iteration, degree
        """,
        {"run": run_id},
    ).df()


def changes_of_state(connection: RecordConnection, run_id: str) -> pd.DataFrame:
    """Return how long devices loaded weights and formed groups, one row each time.

    The first iteration is left out: its weights are those that devices begin with.
    """
    return connection.execute(
        f"SELECT state, ended_at - started_at AS lasted_s FROM ({_NUMBERED}) "
        "WHERE phase = 'iteration' AND iteration > 1 AND state IN ('load', 'regroup') AND number > 1 "
        "ORDER BY started_at, worker",
        {"run": run_id},
    ).df()


def start_times(connection: RecordConnection, run_id: str) -> list[float]:
    """Return the seconds from the start of each device's process until it had loaded its model."""
    rows = connection.execute(
        f"SELECT ended_at - started_at FROM ({_NUMBERED}) WHERE number = 1 AND state = 'load' "
        "ORDER BY started_at, worker",
        {"run": run_id},
    ).fetchall()
    return [float(lasted_s) for (lasted_s,) in rows]


def opening_s(connection: RecordConnection, run_id: str) -> float | None:
    """Return the seconds from the first loaded device to a run's first phase; None if not recorded."""
    row = connection.execute(
        f"SELECT min(started_at) FILTER (number > 1 AND state <> 'idle') "
        f"- min(ended_at) FILTER (number = 1 AND state = 'load') FROM ({_NUMBERED}) "
        "WHERE phase = 'evaluation' AND iteration = 0",
        {"run": run_id},
    ).fetchone()
    return None if row is None or row[0] is None else max(0.0, float(row[0]))


def losses_at_work(connection: RecordConnection, run_id: str) -> list[float]:
    """Return when losses of busy devices became known (Unix seconds)."""
    rows = connection.execute(
        """
        WITH last AS (
            SELECT worker, arg_max(state, started_at) AS state FROM worker_states WHERE run_id = $run
            GROUP BY worker
        )
        SELECT happened_at FROM device_events JOIN last USING (worker)
        WHERE run_id = $run AND kind = 'lost' AND state IN ('rollout', 'explore') ORDER BY happened_at
        """,
        {"run": run_id},
    ).fetchall()
    return [float(at) for (at,) in rows]
