"""The ledger of a run: its paid device time by use, and whether all of it is accounted for.

A worker's paid time and its states are measured separately: the paid time by a meter that runs from its
joining to its loss (`paid_time`), the work by the time line (`worker_states`). So a state that was not
recorded, or is too long, shows as a difference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from storage.config.runtime import AUTO, FIXED_CAPACITY
from storage.record.reading import RecordConnection

if TYPE_CHECKING:  # commands without a bill do not wait for its import
    import pandas as pd

MOST_UNACCOUNTED = 0.001
"""The share of the paid time by which the states may differ from it."""

SAME_MOMENT_S = 1e-6
"""Times this close are equal: a DOUBLE holds today's Unix seconds to a quarter of a microsecond."""

_CUT_WITHIN_S = 1.0  # a loss cuts off a state that ended at most this long before it


@dataclass(frozen=True)
class Spent:
    """Paid device time (seconds) and its dollars, at the prices of the run's settings."""

    device_s: float = 0.0
    usd: float = 0.0


@dataclass(frozen=True)
class Entry:
    """The cost of one state in one phase (iteration, evaluation, discarded) on one market."""

    phase: str
    market: str
    state: str
    spent: Spent


@dataclass(frozen=True)
class Overlap:
    """A state that began at `at` (Unix seconds) while its worker was already in another state."""

    worker: str
    phase: str
    iteration: int
    state: str
    at: float
    double_s: float


@dataclass(frozen=True)
class Loss:
    """A device that died.

    Attributes:
        at: time when it was noticed (Unix seconds).
        cut_state, cut_s: its state, None if it had not loaded yet, and the seconds spent in it, an upper
            bound of the lost work; 0 if it was idle.
    """

    worker: str
    market: str
    iteration: int
    at: float
    cut_state: str | None
    cut_s: float
    detail: str


@dataclass(frozen=True)
class WorkerAccount:
    """A worker's paid time against its states; all in seconds.

    Attributes:
        paid_s: time from its joining to its loss by its meter, over all its lives.
        booked_s: sum of its states.
        double_s: time in two states at once.
    """

    worker: str
    market: str
    paid_s: float
    booked_s: float
    double_s: float

    @property
    def unaccounted_s(self) -> float:
        """Paid time in no state; below 0 if the states are longer than the paid time."""
        return self.paid_s - (self.booked_s - self.double_s)


@dataclass(frozen=True)
class UnjoinedDevice:
    """A device of the run's settings, such as `spot-1`, that never joined.

    `failures` of its workers ended while loading, the last for this reason; if 0, no instance had room.
    """

    device: str
    failures: int
    reason: str


@dataclass(frozen=True)
class StandbyAccount:
    """Use of the standbys with one name, one per life of a run: seconds, bytes, and how they ended."""

    standby: str
    waited_s: float
    cpu_s: float
    memory_bytes: int
    taken: int
    lost: int


@dataclass(frozen=True)
class Ledger:
    """The account of a run.

    Attributes:
        workers: accounts of the workers; none in a simulated run, whose paid time was not measured
            separately.
        has_device_events: True if devices have joined.
        samples: number rolled out in iterations that were kept.
        useful_samples: number of them that training learned from, because their group's scores differ.
        failed_starts: number of workers that ended while they loaded.
        unjoined: devices of the settings that never joined, although others did.
        clock_jumps: messages of the run's events about jumps of the wall clock, newest first.
        standbys: use of hosts by processes that wait for a slot. They hold no device, so no other figure
            includes them.
        judge_usd: cost of the answers of judges with a price, in addition to all of the above.
    """

    entries: tuple[Entry, ...]
    workers: tuple[WorkerAccount, ...]
    overlaps: tuple[Overlap, ...]
    losses: tuple[Loss, ...]
    has_device_events: bool
    samples: int
    useful_samples: int
    failed_starts: int = 0
    unjoined: tuple[UnjoinedDevice, ...] = ()
    clock_jumps: tuple[str, ...] = ()
    standbys: tuple[StandbyAccount, ...] = ()
    judge_usd: float = 0.0

    def spent(
        self, *, phase: str | None = None, market: str | None = None, state: str | None = None
    ) -> Spent:
        """Return the total, or that of one phase, market or state, or of a combination of them.

        Args:
            phase, market, state: None for all.
        """
        parts = [
            entry.spent
            for entry in self.entries
            if phase in (None, entry.phase)
            and market in (None, entry.market)
            and state in (None, entry.state)
        ]
        return Spent(sum(part.device_s for part in parts), sum(part.usd for part in parts))

    @property
    def unaccounted_share(self) -> float:
        """The states' difference from the paid time, as a share of it; 0 if paid time was not measured.

        One worker's surplus does not offset another's deficit.
        """
        paid_s = sum(worker.paid_s for worker in self.workers)
        off_s = sum(abs(worker.unaccounted_s) for worker in self.workers)
        return off_s / paid_s if paid_s > 0 else float(off_s > 0)

    @property
    def is_measured(self) -> bool:
        """True if the paid time was measured separately from the states, so that they can be compared."""
        return bool(self.workers)

    @property
    def is_balanced(self) -> bool:
        """True if the states sum to the measured paid time and no worker is in two of them at once."""
        return not self.overlaps and self.unaccounted_share <= MOST_UNACCOUNTED

    @property
    def spot_idle_share(self) -> float | None:
        """Share of the paid spot time that was idle; None without spot workers."""
        return self._spot_share("idle")

    @property
    def spot_idle_share_unexplored(self) -> float | None:
        """The same, with exploration counted as idle.

        It is an upper bound for the run without exploration: without it, time that other devices waited for
        exploration would not have been paid.
        """
        return self._spot_share("idle", "explore")

    @property
    def lost(self) -> Spent:
        """The paid work that was discarded: a resumed run repeated it."""
        return self.spent(state="lost")

    @property
    def goodput(self) -> float | None:
        """Samples of kept rollouts per paid device-second, including evaluations and lost work.

        None without samples: before the first iteration, and in a simulated run, which records none.
        """
        device_s = self.spent().device_s
        return self.samples / device_s if self.samples and device_s else None

    def _spot_share(self, *states: str) -> float | None:
        whole_s = self.spent(market="spot").device_s
        return sum(self.spent(market="spot", state=s).device_s for s in states) / whole_s if whole_s else None


def judge_usd(connection: RecordConnection, run_id: str) -> float:
    """Return what judges with a price have cost a run, for its samples and for held-out images, in USD."""
    [(usd,)] = connection.execute(
        "SELECT coalesce(sum(usd), 0) FROM judge_costs WHERE run_id = ?", [run_id]
    ).fetchall()
    return float(usd)


def read_ledger(connection: RecordConnection, run_id: str) -> Ledger:
    """Return the account of a run; empty if nothing was recorded."""
    entries = connection.execute(
        """
        SELECT phase, market, state, sum(ended_at - started_at),
            sum((ended_at - started_at) * usd_per_hour) / 3600
        FROM worker_states WHERE run_id = $run GROUP BY ALL ORDER BY ALL
        """,
        {"run": run_id},
    ).fetchall()
    [(events, failed_starts, samples, useful_samples)] = connection.execute(
        """
        SELECT (SELECT count(*) FROM device_events WHERE run_id = $run),
            (SELECT count(*) FROM device_events WHERE run_id = $run AND kind = 'failed'),
            count(*), count(advantage)
        FROM samples WHERE run_id = $run
        """,
        {"run": run_id},
    ).fetchall()
    jumps = connection.execute(
        "SELECT message FROM events WHERE run_id = ? AND kind = 'clock_jump' ORDER BY event_id DESC", [run_id]
    ).fetchall()
    standbys = connection.execute(
        "SELECT standby, sum(waited_s), sum(cpu_s), max(memory_bytes), sum(taken)::BIGINT, sum(lost)::BIGINT "
        "FROM standby_time WHERE run_id = ? GROUP BY standby "
        "ORDER BY split_part(standby, '-', 2)::INTEGER",
        [run_id],
    ).fetchall()
    double_s, overlaps = _overlaps(connection, run_id)
    workers = _worker_accounts(connection, run_id, double_s)
    return Ledger(
        entries=tuple(Entry(row[0], row[1], row[2], Spent(*row[3:])) for row in entries),
        workers=workers,
        overlaps=overlaps if workers else (),
        losses=_losses(connection, run_id),
        has_device_events=events > 0,
        samples=samples,
        useful_samples=useful_samples,
        failed_starts=failed_starts,
        unjoined=_unjoined_devices(connection, run_id),
        clock_jumps=tuple(message for (message,) in jumps),
        standbys=tuple(StandbyAccount(*row) for row in standbys),
        judge_usd=judge_usd(connection, run_id),
    )


def bill_entries(ledger: Ledger) -> pd.DataFrame:
    """Return a run's bill in full detail: columns phase, market, state, device_s, usd."""
    import pandas as pd

    return pd.DataFrame(
        [(e.phase, e.market, e.state, e.spent.device_s, e.spent.usd) for e in ledger.entries],
        columns=["phase", "market", "state", "device_s", "usd"],
    )


def _worker_accounts(
    connection: RecordConnection, run_id: str, double_s: dict[str, float]
) -> tuple[WorkerAccount, ...]:
    """Return the accounts of a run's workers, by name; empty if no paid time was measured."""
    rows = connection.execute(
        """
        WITH paid AS (
            SELECT worker, any_value(market) AS market, sum(paid_s) AS paid_s
            FROM paid_time WHERE run_id = $run GROUP BY worker
        ),
        booked AS (
            SELECT worker, any_value(market) AS market, sum(ended_at - started_at) AS booked_s
            FROM worker_states WHERE run_id = $run GROUP BY worker
        )
        SELECT worker, coalesce(paid.market, booked.market), coalesce(paid_s, 0), coalesce(booked_s, 0)
        FROM paid FULL JOIN booked USING (worker) WHERE EXISTS (FROM paid) ORDER BY worker
        """,
        {"run": run_id},
    ).fetchall()
    return tuple(WorkerAccount(*row, double_s=double_s.get(row[0], 0.0)) for row in rows)


def _overlaps(connection: RecordConnection, run_id: str) -> tuple[dict[str, float], tuple[Overlap, ...]]:
    """Return how long workers were in two states at once, and the states that began the overlaps, by time.

    It uses numpy, on numbers alone: DuckDB's windows took a second on 64 devices and 1,000 iterations, and a
    column of texts takes as long as all the rest, while a page waits.
    """
    of_run = "FROM worker_states WHERE run_id = $run"
    states = connection.execute(
        f"SELECT hash(worker) AS number, started_at, ended_at {of_run}", {"run": run_id}
    ).fetchnumpy()
    named = connection.execute(f"SELECT DISTINCT hash(worker), worker {of_run}", {"run": run_id}).fetchall()
    names: dict[int, str] = dict(named)
    number, started_at, ended_at = (np.asarray(states[name]) for name in ("number", "started_at", "ended_at"))
    order = np.lexsort((ended_at, started_at, number))
    number, started_at, ended_at = number[order], started_at[order], ended_at[order]
    double_s: dict[str, float] = {}
    overlaps: list[Overlap] = []
    begins = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1), len(number)]
    for first, after in pairwise(begins if len(number) else []):
        worker = names[int(number[first])]
        reach = np.maximum.accumulate(ended_at[first:after])[:-1]
        both_s = np.minimum(reach, ended_at[first + 1 : after]) - started_at[first + 1 : after]
        if (both_s > 0).any():
            double_s[worker] = float(both_s[both_s > 0].sum())
        places = np.flatnonzero(both_s > SAME_MOMENT_S)
        if len(places):
            own = connection.execute(
                f"SELECT phase, iteration, state, started_at {of_run} AND worker = $worker "
                "ORDER BY started_at, ended_at",
                {"run": run_id, "worker": worker},
            ).fetchall()
            for place in places:
                # Empty if files have been renamed since the first query.
                for phase, iteration, state, at in own[place + 1 : place + 2]:
                    overlaps.append(Overlap(worker, phase, iteration, state, at, float(both_s[place])))
    return double_s, tuple(sorted(overlaps, key=lambda each: (each.at, each.worker)))


def _losses(connection: RecordConnection, run_id: str) -> tuple[Loss, ...]:
    rows = connection.execute(
        """
        WITH lost AS (SELECT * FROM device_events WHERE run_id = $run AND kind = 'lost'),
        own AS (SELECT * FROM worker_states WHERE run_id = $run AND worker IN (SELECT worker FROM lost))
        SELECT l.worker, l.market, l.iteration, l.happened_at,
            CASE WHEN l.happened_at - s.ended_at <= $within THEN s.state END,
            CASE WHEN l.happened_at - s.ended_at <= $within AND s.state <> 'idle'
                THEN s.ended_at - s.started_at ELSE 0 END,
            l.detail
        FROM lost l ASOF LEFT JOIN own s ON s.worker = l.worker AND l.happened_at >= s.ended_at
        ORDER BY l.happened_at, l.worker
        """,
        {"run": run_id, "within": _CUT_WITHIN_S},
    ).fetchall()
    return tuple(Loss(*row) for row in rows)


def _unjoined_devices(connection: RecordConnection, run_id: str) -> tuple[UnjoinedDevice, ...]:
    """Return the devices that never joined a run in which others did, in the order of the settings.

    A simulated run has none: its policy and trace choose the devices, not the settings.
    """
    config = connection.execute(
        "SELECT config FROM runs WHERE run_id = ? AND status <> 'simulated'", [run_id]
    ).fetchone()
    events = connection.execute(
        """
        SELECT split_part(worker, '.', 1) AS slot, bool_or(kind = 'joined'),
            count(*) FILTER (kind = 'failed'), arg_max(detail, happened_at) FILTER (kind = 'failed')
        FROM device_events WHERE run_id = ? GROUP BY slot
        """,
        [run_id],
    ).fetchall()
    joined = {slot for slot, has_joined, *_ in events if has_joined}
    if config is None or not joined:
        return ()
    failures = {slot: (count, detail) for slot, _, count, detail in events if count}
    runtime = json.loads(config[0]).get("runtime", {})
    found = []
    for market in ("reserved", "spot"):
        count = runtime.get(f"{market}_workers", 0)
        # With `auto` there is a slot for each device that the cluster had; a number may be an upper limit.
        decided = market == "spot" and runtime.get("capacity", FIXED_CAPACITY) != FIXED_CAPACITY
        asked = (
            [slot for slot in failures if slot.startswith(f"{market}-")]
            if count == AUTO or decided
            else [f"{market}-{number}" for number in range(count)]
        )
        for slot in asked:
            if slot not in joined:
                count, reason = failures.get(slot, (0, f"no {market} instance had room for it"))
                found.append(UnjoinedDevice(slot, count, reason))
    return tuple(found)
