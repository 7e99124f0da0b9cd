"""Files and folders of the record: complete and on disk when a call returns, or absent.

A folder appears by one rename. A folder already there is moved aside first, as a rename cannot replace one
with content. Folders of rows in a run's folder are named by what they hold; a part holds the rows of many
others.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from storage.errors import SpotlightError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT = "checkpoint"
"""The folder inside an iteration's folder with the weights and the state after it."""

ASIDE = ".replaced-"
"""The prefix of the name of a folder that was moved aside."""

UNFINISHED = "unfinished-"
"""The prefix of a folder with the paid work of an iteration or evaluation that has no record yet."""

PART_FILE = "part.json"
"""The file in a part that lists the folders whose rows it holds."""

KEPT_OF_DISCARDED = (
    "worker_states", "paid_time", "standby_time", "device_events", "sequence_groups", "judge_costs"
)  # fmt: skip
"""The tables of a discarded iteration that stay: its devices and judges were paid for."""

AS_DISCARDED = {"phase": "discarded", "state": "lost"}
"""Values that replace those in the rows of an abandoned iteration, by column."""

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 4096
_ROWS = re.compile(r"(?:discarded-(\d{4,})-)?(iteration|evaluation)-(\d{6,})|part-(\d{6,})")


@contextmanager
def refusals(
    what: str, then: str = "then try again", failure: type[SpotlightError] = StorageError
) -> Iterator[None]:
    """Turn refusals by the disk into a `failure` with a remedy.

    Args:
        what: what is written.
        then: what to do after the remedy.
    """
    try:
        yield
    except OSError as error:
        raise failure(
            f"cannot write {what}: {error.strerror or error}; free disk space or fix the folder's rights, "
            f"{then}"
        ) from error


def put_folder(
    parent: Path,
    name: str,
    rows: Mapping[str, pa.Table | Callable[[IO[bytes]], None]],
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    checkpoint: Mapping[str, bytes | bytearray | memoryview] | None = None,
    writer: str = "",
    publishing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Write a folder under another name, force it to disk and rename it, replacing an earlier one.

    Args:
        rows: rows by table, or a function that writes them into an open file.
        facts: content by JSON file.
        checkpoint: content by file of the folder `CHECKPOINT` in it; None for no such folder.
        writer: identifier that keeps two processes from writing into one folder.
        publishing: context of the rename; it may refuse.
    """
    import pyarrow.parquet as pq

    saving, final = parent / f".saving-{name}{writer and f'-{writer}'}", parent / name
    shutil.rmtree(saving, ignore_errors=True)
    saving.mkdir(mode=0o700, parents=True)
    for table, content in rows.items():
        with (saving / f"{table}.parquet").open("wb") as file:
            if callable(content):
                content(file)
            else:
                pq.write_table(content, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
    for file_name, values in (facts or {}).items():
        write_json(saving / file_name, values)
    if checkpoint is not None:
        (saving / CHECKPOINT).mkdir(mode=0o700)
        for file_name, octets in checkpoint.items():
            write_durably(saving / CHECKPOINT / file_name, octets)
        sync_folder(saving / CHECKPOINT)
    sync_folder(saving)
    with publishing():
        if final.exists():  # a rename cannot replace a folder with content
            replaced = parent / f"{ASIDE}{name}"
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
            saving.rename(final)
            delete_folder(replaced)
        else:
            saving.rename(final)
        sync_folder(parent)


def is_whole(path: Path) -> bool:
    """Return True if a Parquet file can be read to its end; a missing one cannot."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:  # `read_table` would import pandas
            for group in range(file.num_row_groups):  # one at a time: a part has the rows of a whole run
                file.read_row_group(group)
    except (OSError, pa.ArrowException):
        return False
    return True


def delete_folder(path: Path, run: Path | None = None) -> None:
    """Delete a folder, if it exists, without ever showing it half deleted under its name.

    Args:
        run: folder of the run, if `path` is deeper than that.
    """
    deleting = (run or path.parent) / f".deleting-{path.name}-{time.time_ns()}"
    try:
        path.rename(deleting)
    except FileNotFoundError:
        return
    shutil.rmtree(deleting, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; a StorageError if the file is missing or damaged."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise StorageError(f"{path} is missing; copy the run's folder again from an intact copy") from error
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(
            f"{path} is damaged ({error}); restore the file, or move the run's folder out of the home"
        ) from error
    if not isinstance(values, dict):
        raise StorageError(
            f"{path} holds no object; restore the file, or move the run's folder out of the home"
        )
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file by one rename; when this returns it is on disk. May raise OSError."""
    # A path that is not UTF-8 gives an error message that cannot be encoded.
    replace_file(path, json.dumps(values, ensure_ascii=False, indent=1).encode("utf-8", "replace"))


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by one rename; when this returns it is on disk. May raise OSError."""
    writing = path.with_name(f".writing-{path.name}")
    writing.unlink(missing_ok=True)  # of a process that was killed
    write_durably(writing, content)
    writing.replace(path)
    sync_folder(path.parent)


@contextmanager
def locked(file: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a system lock on a file, which is made with its folder; a crash releases it.

    Args:
        wait: True to wait for a process or thread that has the lock; otherwise yield False if one has it.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)  # a forked child may have the file open, too


def write_durably(path: Path, content: bytes | bytearray | memoryview) -> None:
    """Write a new file; when this returns it is on disk. OSError if the disk refuses or the file exists."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force a folder's entries (names, not contents) to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class RowFolder:
    """A folder of rows.

    Attributes:
        path: path of the folder; `name` stays its name, even while a writer has moved it aside.
        discarded: 0 for rows that count, else the number of the discard that named it.
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
        """Its files that count, by table; empty if the folder is gone."""
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
    """

    folders: list[RowFolder]
    parts: list[RowFolder]
    covered: list[RowFolder]
    last_iteration: int | None
    discardings: int

    def files(self, table: str, *, discarded: bool = False) -> list[Path]:
        """Return the files of a table's rows: those that count (parts included), or of discarded folders."""
        wanted = [f for f in (*self.parts, *self.folders) if bool(f.discarded) == discarded]
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
    """Return the iteration of a folder whose name may be reused; -1 for all others."""
    match = _ROWS.fullmatch(name)
    return int(match[3]) if match and match[3] and not match[1] else -1


def part_facts(folder: RowFolder) -> dict[str, Any] | None:
    """Return the facts of a part; None if it has gone, or a copy of it was interrupted."""
    path = folder.path / PART_FILE
    try:
        facts = read_json(path)
    except StorageError:
        if path.exists():
            raise
        return None
    if not isinstance(facts.get("covers"), list) or not {"last_iteration", "discardings"} <= facts.keys():
        raise StorageError(f"{path} does not describe a part; restore the file from a copy")
    return facts


def as_discarded(rows: pa.Table) -> pa.Table:
    """Return device rows of an iteration that is repeated: phase `discarded`, state `lost`."""
    import pyarrow as pa

    for column, value in AS_DISCARDED.items():
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
            for rows in _read_in_batches(folder.tables[table], schema(table)):
                waiting.append(as_discarded(rows) if folder.discarded else rows)
                if sum(rows.nbytes for rows in waiting) > _BATCH_BYTES:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _read_in_batches(path: Path, columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield a file's rows in batches: these columns alone, NULL in those that an older file lacks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):  # a batch that spans row groups may be arbitrarily large
            for batch in file.iter_batches(_BATCH_ROWS, [group], use_threads=False):
                rows = [columns.empty_table(), pa.Table.from_batches([batch])]
                known = pa.concat_tables(rows, promote_options="permissive")
                yield known.select(columns.names).cast(columns)
