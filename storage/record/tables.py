"""Tables of a run's record: their columns as Arrow schemas, and the rows made from a record.

Times are Unix seconds, durations end in `_s`, money in `_usd` or is called `usd`. A table is written with its
explicit schema, so that a column of only NULL keeps its type; a column that older files lack reads as NULL.
To add a column, add it here and to its record's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from storage.errors import StorageError
from storage.record.records import (
    JUDGE_USD,
    Collected,
    DeviceTime,
    EvaluationRecord,
    IterationRecord,
    JudgedImage,
)

_I32, _I64, _F64, _BOOL, _TEXT, _BYTES = (
    pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
)  # fmt: skip
_ITERATION = {"run_id": _TEXT, "iteration": _I32}
_PHASE = {"run_id": _TEXT, "phase": _TEXT, "iteration": _I32}
_SEED = {"prompt_id": _I64, "seed_index": _I64}
_JUDGED = {"score": _F64, "exact": _BOOL, "detail": _TEXT, "error": _TEXT}
_MADE = {"policy_version": _I32, "started_at": _F64, "ended_at": _F64}

COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "iterations": {**_ITERATION, **_MADE},
    "iteration_metrics": {**_ITERATION, "name": _TEXT, "value": _F64},
    "prompts": {**_ITERATION, "purpose": _TEXT, "prompt_id": _I64, "prompt": _TEXT},
    "samples": {
        **_ITERATION, **_SEED, "policy_version": _I32, **_JUDGED, "seed_rank": _I32, "explored_score": _F64,
        "advantage": _F64, "worker": _TEXT,
    },
    "candidates": {
        **_ITERATION, **_SEED, "fidelity": _TEXT, "policy_version": _I32, "score": _F64, "exact": _BOOL,
        "error": _TEXT, "round": _I32, "rank": _I32, "kept": _BOOL,
    },
    "sample_images": {**_ITERATION, **_SEED, "png": _BYTES},
    "evaluations": {**_ITERATION, **_MADE, "score": _F64, "exact": _F64},
    "evaluation_metrics": {**_ITERATION, "name": _TEXT, "value": _F64},
    "evaluation_images": {**_ITERATION, **_SEED, **_JUDGED, "png": _BYTES},
    "evaluation_image_figures": {**_ITERATION, **_SEED, "name": _TEXT, "value": _F64},
    "worker_states": {
        **_PHASE, "started_at": _F64, "worker": _TEXT, "place": _I32, "market": _TEXT, "state": _TEXT,
        "ended_at": _F64, "usd_per_hour": _F64,
    },
    "paid_time": {**_PHASE, "worker": _TEXT, "market": _TEXT, "paid_s": _F64},
    "judge_costs": {**_PHASE, "usd": _F64},
    "standby_time": {
        **_PHASE, "standby": _TEXT, "waited_s": _F64, "cpu_s": _F64, "memory_bytes": _I64, "taken": _I32,
        "lost": _I32,
    },
    "device_events": {
        **_PHASE, "happened_at": _F64, "worker": _TEXT, "place": _I32, "market": _TEXT, "kind": _TEXT,
        "detail": _TEXT,
    },
    "sequence_groups": {
        **_PHASE, "started_at": _F64, "epoch": _I32, "place": _I32, "instance": _TEXT, "members": _TEXT,
        "degree": _I32, "ended_at": _F64,
    },
    "step_times": {**_PHASE, "request_class": _TEXT, "degree": _I32, "step_s": _F64, "chunks": _I32},
}  # fmt: skip
"""Columns of each table of a run, by name."""

EVALUATION_COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "separate_evaluation_images": {
        "evaluation_id": _TEXT, **_SEED, "prompt": _TEXT, "tag": _TEXT, **_JUDGED,
    },
    "separate_evaluation_image_figures": {
        "evaluation_id": _TEXT, **_SEED, "name": _TEXT, "value": _F64,
    },
}  # fmt: skip
"""Columns of the tables of an evaluation by `spotlight evaluate`."""

KEYS: Mapping[str, Sequence[str]] = {
    "samples": ("prompt_id", "seed_index"),
    "candidates": ("prompt_id", "seed_index", "fidelity", "policy_version"),
    "evaluation_images": ("prompt_id", "seed_index"),
    "separate_evaluation_images": ("prompt_id", "seed_index"),
}
"""The columns that identify the rows of one folder: nothing may be delivered twice."""

Rows = dict[str, pa.Table]
"""Rows by table; a table without rows is left out."""


def schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table."""
    columns = COLUMNS[table] if table in COLUMNS else EVALUATION_COLUMNS[table]
    return pa.schema(list(columns.items()))


def tables_of(rows: Mapping[str, Iterable[Mapping[str, Any]]], **shared: Any) -> Rows:
    """Build tables from rows (values by column; others are left out) and the values that all rows share.

    Raises:
        StorageError: two rows have the same key, or a row lacks a column.
    """
    found: Rows = {}
    for table, given in rows.items():
        values, key, fields = [{**shared, **row} for row in given], KEYS.get(table, ()), schema(table)
        try:
            columns = {name: [row[name] for row in values] for name in fields.names}
        except KeyError as error:
            raise StorageError(f"a row of {table} lacks the column {error}") from error
        if key and len(set(zip(*(columns[name] for name in key), strict=True))) < len(values):
            raise StorageError(f"{len(values)} rows of {table} have the same {', '.join(key)} more than once")
        if values:
            found[table] = pa.table(columns, fields)
    return found


def figure_rows(images: Iterable[JudgedImage]) -> list[dict[str, Any]]:
    """Return a row for each named figure of each image."""
    return [vars(image) | row for image in images for row in _named(image.figures)]


def iteration_rows(record: IterationRecord) -> Rows:
    """Return the rows of a committed iteration."""
    return tables_of(
        {
            "iterations": [vars(record)],
            "iteration_metrics": _named(record.metrics),
            "prompts": _prompts([*record.samples, *record.candidates]),
            "samples": map(vars, record.samples),
            "candidates": map(vars, record.candidates),
            "sample_images": map(vars, record.sample_images),
            "judge_costs": [{"usd": record.metrics[JUDGE_USD]}] if JUDGE_USD in record.metrics else (),
            **_device_rows(record),
        },
        run_id=record.run_id, iteration=record.iteration, phase="iteration", purpose="train",
    )  # fmt: skip


def evaluation_rows(record: EvaluationRecord) -> Rows:
    """Return the rows of a held-out evaluation."""
    parts = {f"part_{name}": mean for name, mean in record.parts.items()}
    judge_usd = sum(image.figures.get(JUDGE_USD, 0.0) for image in record.images)
    return tables_of(
        {
            "evaluations": [vars(record)],
            "evaluation_metrics": _named(parts | record.looks),
            "prompts": _prompts(record.images),
            "evaluation_images": map(vars, record.images),
            "evaluation_image_figures": figure_rows(record.images),
            "judge_costs": [{"usd": judge_usd}] if judge_usd else (),
            **_device_rows(record),
        },
        run_id=record.run_id, iteration=record.iteration, phase="evaluation", purpose="evaluate",
    )  # fmt: skip


def unfinished_rows(run_id: str, phase: str, iteration: int, done: Collected) -> Rows:
    """Return the rows of paid work that has no record yet.

    Args:
        phase, iteration: the `iteration` or `evaluation` that the work belongs to.
    """
    usd = done.judge_usd + done.evaluation_judge_usd
    return tables_of(
        {"judge_costs": [{"usd": usd}] if usd else (), **_device_rows(done)},
        run_id=run_id, iteration=iteration, phase=phase,
    )  # fmt: skip


def _named(figures: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"name": name, "value": float(value)} for name, value in figures.items()]


def _prompts(rows: Iterable[Any]) -> list[dict[str, Any]]:
    texts = {row.prompt_id: row.prompt for row in rows}
    return [{"prompt_id": prompt_id, "prompt": text} for prompt_id, text in texts.items()]


def _device_rows(record: DeviceTime) -> dict[str, Iterable[dict[str, Any]]]:
    return {
        "worker_states": [vars(state) | {"place": n} for n, state in enumerate(record.intervals)],
        "paid_time": map(vars, record.paid_time),
        "standby_time": [
            vars(time) | {end: int(time.end == end) for end in ("taken", "lost")}
            for time in record.standby_time
        ],
        "device_events": [
            vars(event) | {"place": n, "happened_at": event.at}
            for n, event in enumerate(record.device_events)
        ],
        "sequence_groups": [
            vars(group) | {"members": "+".join(group.members), "degree": len(group.members)}
            for group in record.groups
        ],
        "step_times": map(vars, record.step_times),
    }
