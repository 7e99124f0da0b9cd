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
from storage.record.records import DeviceTime, EvaluationRecord, IterationRecord

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

Columns = Mapping[str, Sequence[Any]]
"""One value per row, by column."""


def schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table."""
    columns = COLUMNS[table] if table in COLUMNS else EVALUATION_COLUMNS[table]
    return pa.schema(list(columns.items()))


def tables_of(columns: Mapping[str, Columns], **shared: Any) -> Rows:
    """Build tables from columns and the values that all rows share, and leave out those without rows.

    Raises:
        StorageError: two rows have the same key.
    """
    return {name: _table(name, own, shared) for name, own in columns.items() if next(iter(own.values()))}


def columns_of(table: str, rows: Sequence[object], without: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Return columns of a table from rows whose attributes have their names.

    Args:
        without: columns to leave out.
    """
    names = [name for name in schema(table).names if name not in without]
    return {name: [getattr(row, name) for row in rows] for name in names}


def figure_columns(images: Iterable[Any]) -> dict[str, list[Any]]:
    """Return columns with one row for each named figure of each image."""
    rows = [(i.prompt_id, i.seed_index, name, value) for i in images for name, value in i.figures.items()]
    names = ("prompt_id", "seed_index", "name", "value")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def iteration_rows(record: IterationRecord) -> Rows:
    """Return the rows of a committed iteration."""
    metrics = {name: float(value) for name, value in record.metrics.items()}
    prompts = {row.prompt_id: row.prompt for row in [*record.samples, *record.candidates]}
    return tables_of(
        {
            "iterations": columns_of("iterations", [record], _ITERATION),
            "iteration_metrics": {"name": list(metrics), "value": list(metrics.values())},
            "prompts": {"prompt_id": list(prompts), "prompt": list(prompts.values())},
            "samples": columns_of("samples", record.samples, _ITERATION),
            "candidates": columns_of("candidates", record.candidates, _ITERATION),
            "sample_images": columns_of("sample_images", record.sample_images, _ITERATION),
            **_device_columns(record),
        },
        run_id=record.run_id, iteration=record.iteration, phase="iteration", purpose="train",
    )  # fmt: skip


def evaluation_rows(record: EvaluationRecord) -> Rows:
    """Return the rows of a held-out evaluation."""
    images = record.images
    prompts = {image.prompt_id: image.prompt for image in images}
    metrics = {f"part_{name}": mean for name, mean in record.parts.items()} | record.looks
    return tables_of(
        {
            "evaluations": columns_of("evaluations", [record], _ITERATION),
            "evaluation_metrics": {"name": list(metrics), "value": list(metrics.values())},
            "prompts": {"prompt_id": list(prompts), "prompt": list(prompts.values())},
            "evaluation_images": columns_of("evaluation_images", images, _ITERATION),
            "evaluation_image_figures": figure_columns(images),
            **_device_columns(record),
        },
        run_id=record.run_id, iteration=record.iteration, phase="evaluation", purpose="evaluate",
    )  # fmt: skip


def _table(name: str, columns: Columns, shared: Mapping[str, Any]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    if name in KEYS and len(set(zip(*(columns[key] for key in KEYS[name]), strict=True))) < rows:
        raise StorageError(f"{rows} rows of {name} have the same {', '.join(KEYS[name])} more than once")
    fields = schema(name)
    values = [columns[field] if field in columns else [shared[field]] * rows for field in fields.names]
    arrays = [pa.array(column, kind) for column, kind in zip(values, fields.types, strict=True)]
    return pa.table(arrays, schema=fields)


def _device_columns(record: DeviceTime) -> dict[str, Columns]:
    events, groups, standbys = record.device_events, record.groups, record.standby_time
    return {
        "worker_states": {
            **columns_of("worker_states", record.intervals, (*_PHASE, "place")),
            "place": range(len(record.intervals)),
        },
        "paid_time": columns_of("paid_time", record.paid_time, _PHASE),
        "standby_time": {
            **columns_of("standby_time", standbys, (*_PHASE, "taken", "lost")),
            "taken": [int(time.end == "taken") for time in standbys],
            "lost": [int(time.end == "lost") for time in standbys],
        },
        "device_events": {
            **columns_of("device_events", events, (*_PHASE, "place", "happened_at")),
            "happened_at": [event.at for event in events],
            "place": range(len(events)),
        },
        "sequence_groups": {
            **columns_of("sequence_groups", groups, (*_PHASE, "members", "degree")),
            "members": ["+".join(group.members) for group in groups],
            "degree": [len(group.members) for group in groups],
        },
        "step_times": columns_of("step_times", record.step_times, _PHASE),
    }
