"""Each worker's paid time against its states.

The two are measured apart. What a worker was paid for comes from a meter that runs from its joining to its
loss (`paid_time`), its states from the time line (`worker_states`). So a state that was not recorded, or
one that is too long, shows as a difference.

Records from before schema version 5 have no meter's reading: they are in no account.

Overlaps are looked for in numpy: DuckDB's windows over the intervals took a second on 64 devices and 1,000
iterations, and a page of the dashboard waits for this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.record.reading import RecordConnection

_MEASURED = "(SELECT DISTINCT phase, iteration FROM paid_time WHERE run_id = $run)"


@dataclass(frozen=True)
class WorkerAccount:
    """A worker's paid time against its states; all in seconds.

    Attributes:
        paid_s: from its joining to its loss, as its meter says; over all its lives.
        booked_s: the sum of its states.
        double_s: in two states at once.
    """

    worker: str
    market: str
    paid_s: float
    booked_s: float
    double_s: float

    @property
    def unaccounted_s(self) -> float:
        """Paid for, and in no state; below 0 where the states are longer than what was paid for."""
        return self.paid_s - (self.booked_s - self.double_s)


def worker_accounts(connection: RecordConnection, run_id: str) -> tuple[WorkerAccount, ...]:
    """The accounts of a run's workers, by name; of the records whose paid time was measured.

    Args:
        connection: an open one.
        run_id: the run.
    """
    rows = connection.execute(
        f"""
        WITH paid AS (
            SELECT worker, any_value(market) AS market, sum(paid_s) AS paid_s
            FROM paid_time WHERE run_id = $run GROUP BY worker
        ),
        booked AS (
            SELECT worker, any_value(market) AS market, sum(ended_at - started_at) AS booked_s
            FROM worker_states SEMI JOIN {_MEASURED} USING (phase, iteration)
            WHERE run_id = $run GROUP BY worker
        )
        SELECT worker, coalesce(paid.market, booked.market), coalesce(paid_s, 0), coalesce(booked_s, 0)
        FROM paid FULL JOIN booked USING (worker) ORDER BY worker
        """,
        {"run": run_id},
    ).fetchall()
    double_s = _double_s(connection, run_id)
    return tuple(
        WorkerAccount(worker, market, paid_s, booked_s, double_s.get(worker, 0.0))
        for worker, market, paid_s, booked_s in rows
    )


def _double_s(connection: RecordConnection, run_id: str) -> dict[str, float]:
    """How long each worker was in two states at once; those that were."""
    found = connection.execute(
        f"""
        SELECT dense_rank() OVER (ORDER BY worker) - 1 AS number, started_at, ended_at
        FROM worker_states SEMI JOIN {_MEASURED} USING (phase, iteration) WHERE run_id = $run
        """,
        {"run": run_id},
    ).fetchnumpy()
    number, started_at, ended_at = (np.asarray(found[name]) for name in ("number", "started_at", "ended_at"))
    order = np.lexsort((ended_at, started_at, number))
    number, started_at, ended_at = number[order], started_at[order], ended_at[order]
    names = connection.execute(
        f"""
        SELECT DISTINCT worker FROM worker_states SEMI JOIN {_MEASURED} USING (phase, iteration)
        WHERE run_id = $run ORDER BY worker
        """,
        {"run": run_id},
    ).fetchall()
    bounds = np.searchsorted(number, np.arange(len(names) + 1))
    double_s: dict[str, float] = {}
    for place, (name,) in enumerate(names):
        own = slice(bounds[place], bounds[place + 1])
        reach = np.maximum.accumulate(ended_at[own])[:-1]
        both_s = np.minimum(reach, ended_at[own][1:]) - started_at[own][1:]
        if (both_s > 0).any():
            double_s[name] = float(both_s[both_s > 0].sum())
    return double_s
