"""Queries about devices: the work of each over time, and the utilisation of a market.

Like storage/record/queries/runs.py: each function takes an open connection and returns a pandas frame.
"""

from __future__ import annotations

import pandas as pd

from storage.record.reading import RecordConnection


def device_intervals(
    connection: RecordConnection, run_id: str, first: int, last: int, limit: int
) -> pd.DataFrame:
    """Return the states of devices in some iterations, evaluations and discarded work included, by time.

    Args:
        first, last, limit: iterations to read, both included, and the most rows to return, the latest ones;
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
    """Return times of a denoising step by number of devices that shared it, if measured times choose that.

    `step_s` is the latest measurement up to iteration `last`, `chunks` the number timed so far, `share` that
    of the time that devices spent in groups in iterations `first` to `last` (0 if none did).
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
