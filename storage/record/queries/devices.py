"""Queries about devices: their work over time, use per market, and the times of a recorded workload.

Each function takes an open connection, as those of storage/record/queries/runs.py do.
"""

from __future__ import annotations

import pandas as pd

from storage.record.reading import RecordConnection


def device_intervals(
    connection: RecordConnection, run_id: str, first: int, last: int, limit: int
) -> pd.DataFrame:
    """Return the states of devices in some iterations, evaluations and discarded work included, by time.

    Args:
        first, last, limit: iterations to read, inclusive, and the most rows to return, the latest ones;
            column `of` is their number without the limit.
    """
    columns = (
        "worker, market, state, phase, iteration, started_at, ended_at, "
        "(ended_at - started_at) * usd_per_hour / 3600 AS usd, count(*) OVER () AS of"
    )
    latest = _latest("worker_states", columns, "ended_at DESC, worker")
    values = {"run": run_id, "first": first, "last": last, "limit": limit}
    return connection.execute(f"{latest} ORDER BY started_at, worker", values).df()


def device_events(
    connection: RecordConnection, run_id: str, first: int, last: int, limit: int
) -> pd.DataFrame:
    """Return the events of devices in some iterations, by time.

    Args:
        first, last, limit: as for `device_intervals`.
    """
    columns = "worker, market, kind, happened_at, detail"
    latest = _latest("device_events", columns, "happened_at DESC, worker")
    values = {"run": run_id, "first": first, "last": last, "limit": limit}
    return connection.execute(f"{latest} ORDER BY happened_at, worker", values).df()


def sequence_groups(
    connection: RecordConnection, run_id: str, first: int, last: int, limit: int
) -> pd.DataFrame:
    """Return the groups that shared sequences in some iterations, by time: one row per member.

    Args:
        first, last, limit: as for `device_intervals`, of groups.
    """
    columns = "degree, epoch, place, instance, members, started_at, ended_at"
    latest = _latest("sequence_groups", columns, "ended_at DESC, epoch DESC, place")
    values = {"run": run_id, "first": first, "last": last, "limit": limit}
    return connection.execute(
        f"SELECT unnest(string_split(members, '+')) AS worker, * {latest} "
        "ORDER BY started_at, epoch, place, worker",
        values,
    ).df()


def _latest(table: str, columns: str, newest: str) -> str:
    """Return `FROM` the `$limit` newest rows of a table in iterations `$first` to `$last`."""
    return (
        f"FROM (SELECT {columns} FROM {table} WHERE run_id = $run AND iteration BETWEEN $first AND $last "
        f"ORDER BY {newest} LIMIT $limit)"
    )


def degree_times(connection: RecordConnection, run_id: str, first: int, last: int) -> pd.DataFrame:
    """Return times of a denoising step by number of devices that shared it, if measured times choose it.

    `step_s` is the latest measurement up to iteration `last`, `chunks` the number timed so far, `share` its
    share of the time that devices spent in groups in iterations `first` to `last` (0 if none did).
    """
    return connection.execute(
        """
        WITH times AS (
            SELECT request_class, degree, arg_max(step_s, iteration) AS step_s, sum(chunks)::BIGINT AS chunks
            FROM step_times WHERE run_id = $run AND iteration <= $last GROUP BY request_class, degree
        ),
        used AS (
            SELECT degree, sum((ended_at - started_at) * degree) AS device_s FROM sequence_groups
            WHERE run_id = $run AND phase <> 'discarded' AND iteration BETWEEN $first AND $last
            GROUP BY degree
        )
        SELECT request_class, degree, step_s, chunks,
            coalesce(device_s / (SELECT sum(device_s) FROM used), 0) AS share
        FROM times LEFT JOIN used USING (degree) ORDER BY request_class, degree
        """,
        {"run": run_id, "first": first, "last": last},
    ).df()


def recorded_iterations(connection: RecordConnection, run_id: str) -> list[int]:
    """Return the kept iterations with recorded device time, in order."""
    rows = connection.execute(
        "SELECT DISTINCT iteration FROM costs WHERE run_id = ? AND phase <> 'discarded' ORDER BY iteration",
        [run_id],
    ).fetchall()
    return [iteration for (iteration,) in rows]


def utilisation(connection: RecordConnection, run_id: str, most_groups: int) -> pd.DataFrame:
    """Return paid device time of each market by state, and its share of the market's.

    Neighbouring iterations are grouped (`first` to `last`), so that there are at most `most_groups` groups.
    Evaluations and discarded work are left out.
    """
    return connection.execute(
        """
        WITH own AS (
            SELECT * FROM costs WHERE run_id = $run AND phase = 'iteration'
        ),
        grouped AS (
            SELECT *, (iteration - lowest) // size AS bin FROM own, (
                SELECT min(iteration) AS lowest,
                    greatest(ceil((max(iteration) - min(iteration) + 1) / $most), 1)::INTEGER AS size FROM own
            )
        ),
        bins AS (SELECT bin, min(iteration) AS first, max(iteration) AS last FROM grouped GROUP BY bin)
        SELECT first, last, market, state, sum(device_s) AS device_s,
            sum(device_s) / nullif(sum(sum(device_s)) OVER (PARTITION BY bin, market), 0) AS share
        FROM grouped JOIN bins USING (bin)
        GROUP BY bin, first, last, market, state ORDER BY first, market, state
        """,
        {"run": run_id, "most": most_groups},
    ).df()


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
    """Return device time of rollouts by number of devices that shared samples, if they worked in groups."""
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

    The first iteration is left out: devices begin with its weights.
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
