"""Files and folders of the record: complete and on disk when a call returns, or absent.

A folder appears by one rename. A folder in its place is moved aside first: no rename can replace a full one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from storage.errors import SpotlightError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT = "checkpoint"
"""The folder inside an iteration's folder with the weights and the state after it."""

ASIDE = ".replaced-"
"""The prefix of the name of a folder that was moved aside."""


@contextmanager
def refusals(
    what: str, then: str = "then try again", failure: type[SpotlightError] = StorageError
) -> Iterator[None]:
    """Turn refusals by the disk into an error with a remedy.

    Args:
        what: what is written.
        then: what to do after the remedy.
        failure: type of the error.
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
) -> None:
    """Write a folder under another name, force it to disk and rename it, replacing an earlier one.

    Args:
        rows: rows by table, or a function that writes them into an open file.
        facts: content by JSON file.
        checkpoint: content by file of the folder `CHECKPOINT` in it; None for no such folder.
    """
    import pyarrow.parquet as pq

    saving, final = parent / f".saving-{name}", parent / name
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
    if final.exists():  # a rename cannot replace a full folder
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
            file.read()
    except (OSError, pa.ArrowException):
        return False
    return True


def delete_folder(path: Path, run: Path | None = None) -> None:
    """Delete a folder so that it is never seen half deleted under its name.

    Args:
        path: folder to delete; it may be missing.
        run: folder of the run, if `path` is deeper than that.
    """
    deleting = (run or path.parent) / f".deleting-{path.name}-{time.time_ns()}"
    try:
        path.rename(deleting)
    except FileNotFoundError:
        return
    shutil.rmtree(deleting, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        StorageError: the file is missing or damaged.
    """
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise StorageError(
            f"{path} is missing; copy the run's folder again from where it is whole"
        ) from error
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
    """Replace a JSON file by one rename; when this returns it is on disk.

    Raises:
        OSError: the disk refuses.
    """
    # A path that is not UTF-8 gives an error text that cannot be encoded.
    replace_file(path, json.dumps(values, ensure_ascii=False, indent=1).encode("utf-8", "replace"))


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by one rename; when this returns it is on disk.

    Raises:
        OSError: the disk refuses.
    """
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
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the file open, too
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes | bytearray | memoryview) -> None:
    """Write a new file; when this returns it is on disk.

    Raises:
        OSError: the disk refuses, or a file has that name already.
    """
    # Each view ends with its block: an error keeps this frame, and a view that is left in it would keep the
    # caller from closing the underlying buffer.
    with path.open("xb", buffering=0) as file, memoryview(content) as view:
        written = 0
        if view.nbytes:  # an empty view cannot be cast
            with view.cast("B") as octets:
                while written < view.nbytes:
                    with octets[written:] as left:
                        written += file.write(left)  # one write takes at most 2 GiB
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force a folder's entries (names, not contents) to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
