"""Each worker's paid time against its states.

A worker is paid for from the first to the last interval of each of its lives; a life begins where
the worker joined. So the break between a kill and a resume, after which workers of the same names
begin anew, is not on the bill. Runs from before schema version 3 have no events: there, an interval
of loading (or of discarded work) that follows a hole begins a life.

The intervals are walked in numpy: DuckDB's windows over them took a second on 64 devices and 1,000
iterations, and a page of the dashboard waits for this.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np


@dataclass(frozen=True)
class WorkerAccount:
    """A worker's paid time against its states; all in seconds.

    `paid_s` equals `booked_s` + `unaccounted_s` - `double_s`.

    Attributes:
        paid_s: from the first to the last interval of each of its lives.
        booked_s: the sum of its states.
        unaccounted_s: paid for, and in no state.
        double_s: in two states at once.
    """

    worker: str
    market: str
    paid_s: float
    booked_s: float
    unaccounted_s: float
    double_s: float


def worker_accounts(connection: duckdb.DuckDBPyConnection, run_id: str) -> tuple[WorkerAccount, ...]:
    """The accounts of a run's workers, by name.

    Args:
        connection: an open one.
        run_id: the run.
    """
    names = connection.execute(
        "SELECT worker, any_value(market), count(*) FROM worker_states WHERE run_id = ? "
        "GROUP BY worker ORDER BY worker",
        [run_id],
    ).fetchall()
    intervals = connection.execute(
        """
        WITH numbered AS (SELECT worker, row_number() OVER (ORDER BY worker) AS number
            FROM (SELECT DISTINCT worker FROM worker_states WHERE run_id = $run))
        SELECT number, started_at, ended_at, state = 'load' OR phase = 'discarded' AS opens
        FROM worker_states JOIN numbered USING (worker) WHERE run_id = $run
        """,
        {"run": run_id},
    ).fetchnumpy()
    joined: dict[str, list[float]] = {}
    for worker, at in connection.execute(
        "SELECT worker, happened_at FROM device_events WHERE run_id = ? AND kind = 'joined' ORDER BY ALL",
        [run_id],
    ).fetchall():
        joined.setdefault(worker, []).append(at)
    columns = [np.asarray(intervals[name]) for name in ("started_at", "ended_at", "opens")]
    order = np.lexsort((columns[1], columns[0], np.asarray(intervals["number"])))
    started_at, ended_at, opens = (column[order] for column in columns)
    accounts = []
    begin = 0
    for worker, market, count in names:
        own = slice(begin, begin + count)
        begin += count
        lives = np.searchsorted(joined.get(worker, []), started_at[own], side="right")
        accounts.append(_account(worker, market, started_at[own], ended_at[own], opens[own], lives))
    return tuple(accounts)


def _account(
    worker: str, market: str, started_at: np.ndarray, ended_at: np.ndarray, opens: np.ndarray,
    lives: np.ndarray,
) -> WorkerAccount:  # fmt: skip
    """One worker's account from its intervals in order.

    Args:
        worker: its name.
        market: where it is rented.
        started_at: begins, Unix seconds; ended_at likewise.
        ended_at: ends.
        opens: whether an interval may begin a life where no joining was recorded.
        lives: how often the worker had joined when each began.
    """
    reach = np.maximum.accumulate(ended_at)[:-1]
    step_s = started_at[1:] - reach  # how long after the earlier ones; below 0 where they overlap
    begins = (lives[1:] > lives[:-1]) | ((lives[1:] == 0) & opens[1:])
    hole, double = step_s > 0, step_s < 0
    double_s = np.minimum(reach, ended_at[1:]) - started_at[1:]
    return WorkerAccount(
        worker,
        market,
        paid_s=float(ended_at.max() - started_at[0] - step_s[hole & begins].sum()),
        booked_s=float((ended_at - started_at).sum()),
        unaccounted_s=float(step_s[hole & ~begins].sum()),
        double_s=float(double_s[double].sum()),
    )
