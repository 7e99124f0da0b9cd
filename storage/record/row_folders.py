"""Folders of rows in a run's folder: their names, the rows that count, and parts that hold many folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from storage.errors import StorageError
from storage.record.files import ASIDE, read_json

if TYPE_CHECKING:
    import pyarrow as pa

PART_FILE = "part.json"
"""The file of a part that names the folders whose rows it holds."""

KEPT_OF_DISCARDED = ("worker_states", "paid_time", "standby_time", "device_events", "sequence_groups")
"""The tables of a discarded iteration that stay: its devices ran, and were paid for."""

_BATCH_BYTES = 16 << 20
_ROWS = re.compile(r"(?:discarded-(\d{4,})-)?(iteration|evaluation)-(\d{6,})|part-(\d{6,})")


@dataclass(frozen=True)
class RowFolder:
    """A folder of rows.

    Attributes:
        path: path of the folder; `name` stays its name, even while a writer has moved it aside.
        discarded: 0 for rows that count, else the number of the discarding that named it.
        phase: `iteration`, `evaluation` or `part`.
        number: number of the iteration, or of the part.
    """

    path: Path
    name: str
    discarded: int
    phase: str
    number: int

    @cached_property
    def tables(self) -> dict[str, Path]:
        """Its files that count, by table; empty if the folder has gone meanwhile."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {name[:-8]: self.path / name for name in sorted(names) if name.endswith(".parquet")}
        return {t: path for t, path in found.items() if not self.discarded or t in KEPT_OF_DISCARDED}


@dataclass(frozen=True)
class Listing:
    """The folders whose rows count, as of one moment.

    Attributes:
        folders: iterations, evaluations and discarded folders that no part holds.
        parts: parts with the rows of many folders.
        covered: folders whose rows a part holds, and which can be deleted.
        last_iteration: newest committed iteration; None before the first.
    """

    folders: list[RowFolder] = field(default_factory=list)
    parts: list[RowFolder] = field(default_factory=list)
    covered: list[RowFolder] = field(default_factory=list)
    last_iteration: int | None = None
    discardings: int = 0

    def files(self, table: str, *, discarded: bool = False) -> list[Path]:
        """Return the files of a table's rows: those that count (parts included), or of discarded folders."""
        own = [*([] if discarded else self.parts), *self.folders]
        wanted = (folder for folder in own if bool(folder.discarded) == discarded)
        return [folder.tables[table] for folder in wanted if table in folder.tables]


def is_row_folder(name: str) -> bool:
    """Return True if a folder of this name in a run's folder holds rows."""
    return _ROWS.fullmatch(name) is not None


def row_folders(run: Path) -> list[RowFolder]:
    """Return all folders of rows; one that a killed writer moved aside counts under its original name."""
    try:
        names = set(os.listdir(run))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        own = name.removeprefix(ASIDE)
        match = _ROWS.fullmatch(own)
        if match is None or (own != name and own in names):
            continue
        discarded, phase, number, part = match.groups()
        found.append(RowFolder(run / name, own, int(discarded or 0), phase or "part", int(number or part)))
    return found


def repeatable_number(name: str) -> int:
    """Return the iteration of a folder whose name may come again; -1 for all others."""
    match = _ROWS.fullmatch(name)
    return int(match[3]) if match and match[3] and not match[1] else -1


def part_facts(folder: RowFolder) -> dict[str, Any] | None:
    """Return the facts of a part; None if it has gone, or a copy of it was interrupted.

    Raises:
        StorageError: its part.json is damaged.
    """
    path = folder.path / PART_FILE
    try:
        facts = read_json(path)
    except StorageError:
        if path.exists():
            raise
        return None
    if not isinstance(facts.get("covers"), list) or not {"last_iteration", "discardings"} <= facts.keys():
        raise StorageError(f"{path} is no description of a part; restore the file from a copy")
    return facts


def as_discarded(rows: pa.Table) -> pa.Table:
    """Return rows of devices for an iteration that is done again: phase `discarded`, state `lost`."""
    import pyarrow as pa

    for column, value in (("phase", "discarded"), ("state", "lost")):
        if column in rows.schema.names:
            place = rows.schema.get_field_index(column)
            rows = rows.set_column(place, column, pa.array([value] * rows.num_rows, pa.string()))
    return rows


def merge_rows(table: str, folders: Iterable[RowFolder], file: IO[bytes]) -> None:
    """Write a table's rows of many folders into one file, a few at a time.

    Args:
        folders: folders of rows, in order.
        file: Parquet file, open for writing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from storage.record.tables import schema

    with pq.ParquetWriter(file, schema(table), compression="zstd") as writer:
        waiting: list[pa.Table] = []
        for folder in folders:
            if table not in folder.tables:
                continue
            rows = pq.read_table(folder.tables[table], schema=schema(table))
            waiting.append(as_discarded(rows) if folder.discarded else rows)
            if sum(rows.nbytes for rows in waiting) > _BATCH_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
