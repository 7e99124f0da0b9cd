"""Records into rows: one function a kind of record, each inside the caller's transaction.

A record's old rows are deleted before its new ones go in, so writing it twice is writing it once.
Rows go in as whole columns (`unnest` of lists): a row at a time is a hundred times slower.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence

import duckdb

from storage.database.records import (
    CandidateRecord,
    DeviceEvent,
    EvaluationImage,
    EvaluationRecord,
    GroupRecord,
    IterationRecord,
    PaidTime,
    SampleImage,
    SampleRecord,
    StandbyTime,
    StateInterval,
    StepTimeRecord,
)

Columns = Mapping[str, tuple[str, Sequence[object]]]
"""Column name -> (SQL type, one value a row)."""

_ITERATION_TABLES = ("iterations", "iteration_metrics", "samples", "candidates", "sample_images")
_EVALUATION_TABLES = ("evaluations", "evaluation_images", "evaluation_image_figures")


def write_iteration(connection: duckdb.DuckDBPyConnection, record: IterationRecord) -> None:
    """Put an iteration's rows in place of those it may have left before."""
    key = [record.run_id, record.iteration]
    for table in _ITERATION_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ? AND iteration = ?", key)
    connection.execute(
        "INSERT INTO iterations VALUES (?, ?, ?, ?, ?)",
        [*key, record.policy_version, record.started_at, record.ended_at],
    )
    metrics = {name: float(value) for name, value in record.metrics.items()}
    _insert(
        connection, "iteration_metrics", record.run_id, record.iteration,
        {"name": ("VARCHAR", list(metrics)), "value": ("DOUBLE", list(metrics.values()))},
    )  # fmt: skip
    _insert(connection, "samples", record.run_id, record.iteration, _sample_columns(record.samples))
    _insert(connection, "candidates", record.run_id, record.iteration, _candidate_columns(record.candidates))
    _insert(
        connection, "sample_images", record.run_id, record.iteration, _thumbnail_columns(record.sample_images)
    )
    _write_prompts(connection, record.run_id, "train", [*record.samples, *record.candidates])
    _write_intervals(connection, record.run_id, "iteration", record.iteration, record.intervals)
    _write_device_events(connection, record.run_id, "iteration", record.iteration, record.device_events)
    _write_groups(connection, record.run_id, "iteration", record.iteration, record.groups)
    _write_step_times(connection, record.run_id, "iteration", record.iteration, record.step_times)
    _write_paid_time(connection, record.run_id, "iteration", record.iteration, record.paid_time)
    _write_standby_time(connection, record.run_id, "iteration", record.iteration, record.standby_time)


def write_evaluation(connection: duckdb.DuckDBPyConnection, record: EvaluationRecord) -> None:
    """Put an evaluation's rows in place of those it may have left before."""
    key = [record.run_id, record.iteration]
    for table in _EVALUATION_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ? AND iteration = ?", key)
    connection.execute(
        "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)",
        [*key, record.policy_version, record.started_at, record.ended_at, record.score, record.exact],
    )
    _insert(connection, "evaluation_images", record.run_id, record.iteration, _image_columns(record.images))
    figures = _figure_columns(record.images)
    _insert(connection, "evaluation_image_figures", record.run_id, record.iteration, figures)
    _write_prompts(connection, record.run_id, "evaluate", record.images)
    _write_intervals(connection, record.run_id, "evaluation", record.iteration, record.intervals)
    _write_device_events(connection, record.run_id, "evaluation", record.iteration, record.device_events)
    _write_groups(connection, record.run_id, "evaluation", record.iteration, record.groups)
    _write_step_times(connection, record.run_id, "evaluation", record.iteration, record.step_times)
    _write_paid_time(connection, record.run_id, "evaluation", record.iteration, record.paid_time)
    _write_standby_time(connection, record.run_id, "evaluation", record.iteration, record.standby_time)


def discard_iterations(connection: duckdb.DuckDBPyConnection, run_id: str, after: int) -> None:
    """Delete what came after iteration `after`, but keep its paid time, as state `lost`.

    The devices ran and were billed although a resumed run does the work again; without these rows
    the states would no longer sum to the bill. What happened to the devices stays too.

    Args:
        connection: open connection that may write.
        run_id: the run.
        after: last iteration that is kept.
    """
    key = [run_id, after]
    for table in _ITERATION_TABLES + _EVALUATION_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ? AND iteration > ?", key)
    later = "run_id = ? AND iteration > ? AND phase <> 'discarded'"
    connection.execute(
        "INSERT OR REPLACE INTO worker_states "
        "SELECT run_id, 'discarded', iteration, started_at, worker, place, market, 'lost', ended_at, "
        f"usd_per_hour FROM worker_states WHERE {later}",
        key,
    )
    connection.execute(
        "INSERT INTO costs SELECT run_id, 'discarded', iteration, 'lost', market, sum(device_s), sum(usd) "
        f"FROM costs WHERE {later} GROUP BY run_id, iteration, market "
        "ON CONFLICT DO UPDATE SET device_s = device_s + excluded.device_s, usd = usd + excluded.usd",
        key,
    )
    connection.execute(
        "INSERT OR REPLACE INTO device_events "
        "SELECT run_id, 'discarded', iteration, happened_at, worker, place, market, kind, detail "
        f"FROM device_events WHERE {later}",
        key,
    )
    connection.execute(
        "INSERT OR REPLACE INTO sequence_groups "
        "SELECT run_id, 'discarded', iteration, started_at, epoch, place, instance, members, degree, "
        f"ended_at FROM sequence_groups WHERE {later}",
        key,
    )
    connection.execute(
        "INSERT INTO paid_time SELECT run_id, 'discarded', iteration, worker, any_value(market), sum(paid_s) "
        f"FROM paid_time WHERE {later} GROUP BY run_id, iteration, worker "
        "ON CONFLICT DO UPDATE SET paid_s = paid_s + excluded.paid_s",
        key,
    )
    connection.execute(
        "INSERT INTO standby_time SELECT run_id, 'discarded', iteration, standby, sum(waited_s), sum(cpu_s), "
        f"max(memory_bytes), sum(taken), sum(lost) FROM standby_time WHERE {later} "
        "GROUP BY run_id, iteration, standby ON CONFLICT DO UPDATE SET "
        "waited_s = waited_s + excluded.waited_s, cpu_s = cpu_s + excluded.cpu_s, "
        "memory_bytes = greatest(memory_bytes, excluded.memory_bytes), "
        "taken = taken + excluded.taken, lost = lost + excluded.lost",
        key,
    )
    for table in (
        "worker_states", "costs", "device_events", "sequence_groups", "step_times", "paid_time",
        "standby_time",
    ):  # fmt: skip
        connection.execute(f"DELETE FROM {table} WHERE {later}", key)


def _insert(
    connection: duckdb.DuckDBPyConnection, table: str, run_id: str, iteration: int, columns: Columns
) -> None:
    """Insert whole columns under one run and iteration; nothing where there are no rows."""
    values = [list(rows) for _, rows in columns.values()]
    if not values[0]:
        return
    cells = ", ".join(f"unnest(?::{sql_type}[])" for sql_type, _ in columns.values())
    connection.execute(
        f"INSERT INTO {table} (run_id, iteration, {', '.join(columns)}) SELECT ?, ?, {cells}",
        [run_id, iteration, *values],
    )


def _replace(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    run_id: str,
    phase: str,
    iteration: int,
    columns: Columns,
) -> None:
    """Put a phase's rows in place of those it may have left before."""
    connection.execute(
        f"DELETE FROM {table} WHERE run_id = ? AND phase = ? AND iteration = ?", [run_id, phase, iteration]
    )
    rows = len(next(iter(columns.values()))[1])
    _insert(connection, table, run_id, iteration, {"phase": ("VARCHAR", [phase] * rows), **columns})


def _sample_columns(samples: Sequence[SampleRecord]) -> Columns:
    return {
        "prompt_id": ("BIGINT", [s.prompt_id for s in samples]),
        "seed_index": ("BIGINT", [s.seed_index for s in samples]),
        "policy_version": ("INTEGER", [s.policy_version for s in samples]),
        "score": ("DOUBLE", [s.score for s in samples]),
        "exact": ("BOOLEAN", [s.exact for s in samples]),
        "detail": ("VARCHAR", [s.detail for s in samples]),
        "error": ("VARCHAR", [s.error for s in samples]),
        "seed_rank": ("INTEGER", [s.seed_rank for s in samples]),
        "explored_score": ("DOUBLE", [s.explored_score for s in samples]),
        "advantage": ("DOUBLE", [s.advantage for s in samples]),
        "worker": ("VARCHAR", [s.worker for s in samples]),
    }


def _candidate_columns(candidates: Sequence[CandidateRecord]) -> Columns:
    return {
        "prompt_id": ("BIGINT", [c.prompt_id for c in candidates]),
        "seed_index": ("BIGINT", [c.seed_index for c in candidates]),
        "fidelity": ("VARCHAR", [c.fidelity for c in candidates]),
        "policy_version": ("INTEGER", [c.policy_version for c in candidates]),
        "score": ("DOUBLE", [c.score for c in candidates]),
        "exact": ("BOOLEAN", [c.exact for c in candidates]),
        "error": ("VARCHAR", [c.error for c in candidates]),
        "round": ("INTEGER", [c.round for c in candidates]),
        "rank": ("INTEGER", [c.rank for c in candidates]),
        "kept": ("BOOLEAN", [c.kept for c in candidates]),
    }


def _thumbnail_columns(images: Sequence[SampleImage]) -> Columns:
    return {
        "prompt_id": ("BIGINT", [i.prompt_id for i in images]),
        "seed_index": ("BIGINT", [i.seed_index for i in images]),
        "png": ("BLOB", [base64.b64decode(i.png_base64) for i in images]),
    }


def _image_columns(images: Sequence[EvaluationImage]) -> Columns:
    pngs = [None if i.png_base64 is None else base64.b64decode(i.png_base64) for i in images]
    return {
        "prompt_id": ("BIGINT", [i.prompt_id for i in images]),
        "seed_index": ("BIGINT", [i.seed_index for i in images]),
        "score": ("DOUBLE", [i.score for i in images]),
        "exact": ("BOOLEAN", [i.exact for i in images]),
        "detail": ("VARCHAR", [i.detail for i in images]),
        "error": ("VARCHAR", [i.error for i in images]),
        "png": ("BLOB", pngs),
    }


def _figure_columns(images: Sequence[EvaluationImage]) -> Columns:
    rows = [(i.prompt_id, i.seed_index, name, value) for i in images for name, value in i.figures.items()]
    return {
        "prompt_id": ("BIGINT", [prompt for prompt, *_ in rows]),
        "seed_index": ("BIGINT", [seed for _, seed, *_ in rows]),
        "name": ("VARCHAR", [name for *_, name, _ in rows]),
        "value": ("DOUBLE", [value for *_, value in rows]),
    }


def _write_prompts(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    purpose: str,
    rows: Sequence[SampleRecord | CandidateRecord] | Sequence[EvaluationImage],
) -> None:
    known = connection.execute(
        "SELECT prompt_id FROM prompts WHERE run_id = ? AND purpose = ?", [run_id, purpose]
    ).fetchall()
    prompts = {row.prompt_id: row.prompt for row in rows}
    for (prompt_id,) in known:  # most iterations bring no new prompt, and the insert is the slow part
        prompts.pop(prompt_id, None)
    if prompts:
        connection.execute(
            "INSERT INTO prompts SELECT ?, ?, unnest(?::BIGINT[]), unnest(?::VARCHAR[])",
            [run_id, purpose, list(prompts), list(prompts.values())],
        )


def _write_intervals(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    phase: str,
    iteration: int,
    intervals: Sequence[StateInterval],
) -> None:
    """Write the device states of a phase and what they add up to."""
    _replace(
        connection, "worker_states", run_id, phase, iteration,
        {
            "started_at": ("DOUBLE", [i.started_at for i in intervals]),
            "worker": ("VARCHAR", [i.worker for i in intervals]),
            "place": ("INTEGER", list(range(len(intervals)))),
            "market": ("VARCHAR", [i.market for i in intervals]),
            "state": ("VARCHAR", [i.state for i in intervals]),
            "ended_at": ("DOUBLE", [i.ended_at for i in intervals]),
            "usd_per_hour": ("DOUBLE", [i.usd_per_hour for i in intervals]),
        },
    )  # fmt: skip
    device_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    usd: defaultdict[tuple[str, str], float] = defaultdict(float)
    for interval in intervals:
        device_s[interval.state, interval.market] += interval.ended_at - interval.started_at
        usd[interval.state, interval.market] += interval.usd
    _replace(
        connection, "costs", run_id, phase, iteration,
        {
            "state": ("VARCHAR", [state for state, _ in usd]),
            "market": ("VARCHAR", [market for _, market in usd]),
            "device_s": ("DOUBLE", list(device_s.values())),
            "usd": ("DOUBLE", list(usd.values())),
        },
    )  # fmt: skip


def _write_device_events(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    phase: str,
    iteration: int,
    events: Sequence[DeviceEvent],
) -> None:
    _replace(
        connection, "device_events", run_id, phase, iteration,
        {
            "happened_at": ("DOUBLE", [e.at for e in events]),
            "worker": ("VARCHAR", [e.worker for e in events]),
            "place": ("INTEGER", list(range(len(events)))),
            "market": ("VARCHAR", [e.market for e in events]),
            "kind": ("VARCHAR", [e.kind for e in events]),
            "detail": ("VARCHAR", [e.detail for e in events]),
        },
    )  # fmt: skip


def _write_groups(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    phase: str,
    iteration: int,
    groups: Sequence[GroupRecord],
) -> None:
    _replace(
        connection, "sequence_groups", run_id, phase, iteration,
        {
            "started_at": ("DOUBLE", [g.started_at for g in groups]),
            "epoch": ("INTEGER", [g.epoch for g in groups]),
            "place": ("INTEGER", [g.place for g in groups]),
            "instance": ("VARCHAR", [g.instance for g in groups]),
            "members": ("VARCHAR", ["+".join(g.members) for g in groups]),
            "degree": ("INTEGER", [len(g.members) for g in groups]),
            "ended_at": ("DOUBLE", [g.ended_at for g in groups]),
        },
    )  # fmt: skip


def _write_step_times(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    phase: str,
    iteration: int,
    times: Sequence[StepTimeRecord],
) -> None:
    _replace(
        connection, "step_times", run_id, phase, iteration,
        {
            "request_class": ("VARCHAR", [t.request_class for t in times]),
            "degree": ("INTEGER", [t.degree for t in times]),
            "step_s": ("DOUBLE", [t.step_s for t in times]),
            "chunks": ("INTEGER", [t.chunks for t in times]),
        },
    )  # fmt: skip


def _write_paid_time(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    phase: str,
    iteration: int,
    paid: Sequence[PaidTime],
) -> None:
    """Write what each worker was paid for; one that came back under its name is added up."""
    paid_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    for part in paid:
        paid_s[part.worker, part.market] += part.paid_s
    _replace(
        connection, "paid_time", run_id, phase, iteration,
        {
            "worker": ("VARCHAR", [worker for worker, _ in paid_s]),
            "market": ("VARCHAR", [market for _, market in paid_s]),
            "paid_s": ("DOUBLE", list(paid_s.values())),
        },
    )  # fmt: skip


def _write_standby_time(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    phase: str,
    iteration: int,
    times: Sequence[StandbyTime],
) -> None:
    """Write what each standby has used, a row each."""
    by_name: defaultdict[str, list[StandbyTime]] = defaultdict(list)
    for time in times:
        by_name[time.standby].append(time)
    parts = list(by_name.values())
    _replace(
        connection, "standby_time", run_id, phase, iteration,
        {
            "standby": ("VARCHAR", list(by_name)),
            "waited_s": ("DOUBLE", [sum(t.waited_s for t in part) for part in parts]),
            "cpu_s": ("DOUBLE", [sum(t.cpu_s for t in part) for part in parts]),
            "memory_bytes": ("BIGINT", [max(t.memory_bytes for t in part) for part in parts]),
            "taken": ("INTEGER", [sum(t.end == "taken" for t in part) for part in parts]),
            "lost": ("INTEGER", [sum(t.end == "lost" for t in part) for part in parts]),
        },
    )  # fmt: skip
