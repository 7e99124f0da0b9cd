"""The folder of one run, which holds all that is recorded about it; nothing else has to be kept in step.

    run.json             identity, settings, environment, status, the process that drives it
    notes.json           a person's tags, note and archive mark, and links to other pages
    events.jsonl         events that a person should see and the run's log, a line each, appended only
    iteration-000012/    rows of an iteration, a Parquet file a table, and where one is due its `checkpoint/`
    evaluation-000012/   rows of the held-out evaluation after it
    discarded-0001-iteration-000012/    what was paid for an iteration that is done again
    part-000001/         rows of many of these folders in one file a table

Invariants:
- A folder of rows appears by one rename, whole, its checkpoint included, and its files never change
  afterwards. A checkpoint that is too old goes alone; the rows stay.
- A part names the folders whose rows it holds. Readers leave those out from the moment that it appears, so
  that no row counts twice; the folders themselves go some minutes later, as a reader may have them open.
- Discarding renames one folder after the other, the latest iteration first: a kill between two leaves
  a run that ends a little later.
- A process that changes run.json or notes.json or adds an event holds the folder's lock for that moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from storage.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa

RUN_FILE, NOTES_FILE, EVENTS_FILE, PART_FILE = "run.json", "notes.json", "events.jsonl", "part.json"
CHECKPOINT = "checkpoint"
"""Folder in that of an iteration, with the weights and the state after it."""

KEPT_OF_DISCARDED = ("worker_states", "paid_time", "standby_time", "device_events", "sequence_groups")
"""Tables of a discarded iteration that stay: its devices ran, and were paid for."""

COMPACTED_AT = 64
"""Folders of rows that a run may have before they are written into one part."""

REPLACED_STAY_S = 600.0
"""How long folders stay whose rows a part holds: a query that listed them before may read them."""

_BATCH_BYTES = 16 << 20
_LARGEST_PART_BYTES = 64 << 20

_ASIDE = ".replaced-"
_ROWS = re.compile(r"(?:discarded-(\d{4,})-)?(iteration|evaluation)-(\d{6,})|part-(\d{6,})")


@dataclass(frozen=True)
class RowFolder:
    """A folder of rows.

    Attributes:
        path: where it is; `name` is what it is called, also while a writer has moved it aside.
        discarded: 0 for rows that count, else which discarding gave it its name.
        phase: `iteration`, `evaluation` or `part`.
        number: of the iteration, or of the part.
    """

    path: Path
    name: str
    discarded: int
    phase: str
    number: int

    @cached_property
    def tables(self) -> dict[str, Path]:
        """Its files by table, those that count; empty where the folder has gone meanwhile."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        found = {name[:-8]: self.path / name for name in sorted(names) if name.endswith(".parquet")}
        return {t: path for t, path in found.items() if not self.discarded or t in KEPT_OF_DISCARDED}


@dataclass(frozen=True)
class Listing:
    """Folders whose rows count, as they were at one moment.

    Attributes:
        folders: iterations, evaluations and discarded ones that no part holds.
        parts: of the rows of many folders.
        covered: folders whose rows a part holds, and which can go.
        last_iteration: the newest committed one; None before the first.
    """

    folders: list[RowFolder] = field(default_factory=list)
    parts: list[RowFolder] = field(default_factory=list)
    covered: list[RowFolder] = field(default_factory=list)
    last_iteration: int | None = None
    discardings: int = 0

    def files(self, table: str, *, discarded: bool = False) -> list[Path]:
        """Files with a table's rows: those that count (parts included), or those of discarded folders."""
        own = [*([] if discarded else self.parts), *self.folders]
        wanted = (folder for folder in own if bool(folder.discarded) == discarded)
        return [folder.tables[table] for folder in wanted if table in folder.tables]


class RunFolder:
    """Reads and writes the folder of a run. Cheap to make; keeps nothing open.

    Args:
        path: the folder; `create` makes it.

    Methods that write raise StorageError where the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        """The run's identifier."""
        return unquote(self.path.name)

    @property
    def exists(self) -> bool:
        """True where there is a run: its folder has a `run.json`."""
        return os.path.isfile(self.path / RUN_FILE)  # False for a name that no folder can have

    def create(self, identity: Mapping[str, Any]) -> bool:
        """Make the folder with its run.json; False where there is a run already."""
        with self._refusals(), self.locked():
            if self.exists:
                return False
            (self.path / EVENTS_FILE).touch()
            write_json(self.path / RUN_FILE, identity)
            return True

    def identity(self) -> dict[str, Any]:
        """Return what run.json holds.

        Raises:
            StorageError: it is damaged or missing.
        """
        return read_json(self.path / RUN_FILE)

    def change(self, file: str, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> bool:
        """Replace run.json or notes.json by what `change` makes of it; None leaves it as it is.

        Args:
            file: `RUN_FILE` or `NOTES_FILE`; a missing one counts as empty.
            change: from the present values to the new ones, under the folder's lock.

        Returns:
            Whether it was replaced.
        """
        path = self.path / file
        with self._refusals(), self.locked():
            changed = change(read_json(path) if path.exists() else {})
            if changed is not None:
                write_json(path, changed)
            return changed is not None

    def notes(self) -> dict[str, Any]:
        """Return what notes.json holds; empty where nothing was noted."""
        path = self.path / NOTES_FILE
        return read_json(path) if path.exists() else {}

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Append an event (JSON values); when this returns it is on disk."""
        with self._refusals(), self.locked():
            self._append(event, durably=True)

    def add_log_line(self, line: Mapping[str, Any]) -> None:
        """Append a line of the log (JSON values, `log` first), which no reader of events sees.

        Raises:
            OSError: the disk refuses.
        """
        # Without the lock, which this very thread may hold where a library logs something.
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._append(line, durably=False)

    def _append(self, values: Mapping[str, Any], durably: bool) -> None:
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        line = text.encode("utf-8", "replace") + b"\n"
        descriptor = os.open(self.path / EVENTS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            left = memoryview(b"\n" + line if torn else line)
            while left:
                left = left[os.write(descriptor, left) :]
            if durably:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def events(self) -> list[dict[str, Any]]:
        """Return the events in their order, each with its `event_id` (from 1).

        Lines of the log and torn ones are left out.
        """
        try:
            lines = (self.path / EVENTS_FILE).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        events = (line for line in lines if not line.startswith(b'{"log":'))  # before they are parsed
        whole = [event for line in events if (event := _parsed(line)) is not None]
        return [{"event_id": place, **event} for place, event in enumerate(whole, start=1)]

    def commit(self, phase: str, number: int, rows: Mapping[str, pa.Table]) -> None:
        """Make the rows of an iteration or an evaluation durable, in place of those it may have had.

        Args:
            phase: `iteration` or `evaluation`.
        """
        with self._refusals():
            put_folder(self.path, f"{phase}-{number:06d}", rows)

    def discard_after(self, number: int) -> None:
        """Drop the iterations and evaluations above `number`; what their devices were paid for stays."""
        with self._refusals():
            self._finish_replacing()
            listing = self.listing()
            for folder in listing.covered:  # their names may come again, and no part may hide them then
                if folder.number > number:
                    delete_folder(folder.path)
                else:
                    _drop_rows(folder.path)
            for part in listing.parts:
                self._discard_in_part(part, number)
            later = [f for f in listing.folders if not f.discarded and f.number > number]
            for folder in sorted(later, key=lambda f: (f.number, f.phase), reverse=True):
                delete_folder(folder.path / CHECKPOINT, self.path)
                given_up = [
                    path.name for table, path in folder.tables.items() if table not in KEPT_OF_DISCARDED
                ]
                target = self.path / f"discarded-{listing.discardings + 1:04d}-{folder.name}"
                folder.path.rename(target)
                for name in given_up:
                    (target / name).unlink(missing_ok=True)
            sync_folder(self.path)

    def compact(self, before: int | None = None, at_least: int = COMPACTED_AT) -> None:
        """Write the rows of many folders into one part, where there are enough of them.

        Args:
            before: the oldest iteration to which the run may go back: only what is below it may be
                compacted. None: all, as the run has ended.
        """
        with self._refusals():
            listing = self.listing()
            folders = [
                f for f in listing.folders if before is None or (f.number < before and not f.discarded)
            ]
            if len(folders) < at_least:
                return
            small = [part for part in listing.parts if _size(part) < _LARGEST_PART_BYTES]
            if before is None or len(small) >= COMPACTED_AT:
                folders = [*small, *folders]
            # A folder with a damaged file stays as it is: the part would have to leave out its rows for good.
            whole = [f for f in folders if all(is_whole(path) for path in f.tables.values())]
            if len(whole) >= at_least:
                self._write_part(whole, listing)
                self.sweep()

    def sweep(self, stay_s: float = REPLACED_STAY_S) -> None:
        """Delete folders whose rows a part holds, and what killed writers left.

        Args:
            stay_s: seconds after which no reader has them open, and no writer is at work in them.
        """
        with self._refusals():
            old = time.time() - stay_s
            for part in self.listing().parts:
                if _changed_at(part.path) < old:
                    for name in read_json(part.path / PART_FILE)["covers"]:
                        _drop_rows(self.path / name)
            for path in self.path.glob(".*-*"):
                # What was moved aside is the only copy where nothing has its name.
                is_needed = (
                    path.name.startswith(_ASIDE) and not (self.path / path.name[len(_ASIDE) :]).exists()
                )
                if path.is_dir() and _changed_at(path) < old and not is_needed:
                    shutil.rmtree(path, ignore_errors=True)

    def damaged(self) -> list[Path]:
        """Return the files of rows that count and cannot be read."""
        listing = self.listing()
        folders = [*listing.parts, *listing.folders]
        paths = [path for folder in folders for path in folder.tables.values()]
        return [path for path in paths if path.exists() and not is_whole(path)]

    def set_aside_damaged(self) -> list[Path]:
        """Give damaged files another name, under which they are not read; the names that they had."""
        with self._refusals():
            damaged = self.damaged()
            for path in damaged:
                path.rename(path.with_name(f"{path.name}.damaged"))
            return damaged

    def listing(self) -> Listing:
        """List the folders whose rows count now."""
        while True:
            # Until two lists agree: a folder that is renamed meanwhile may be in neither place, or in both.
            found = row_folders(self.path)
            held = {f.name: part for f in found if f.phase == "part" and (part := _part(f)) is not None}
            if {f.name for f in row_folders(self.path)} == {f.name for f in found}:
                break
        found = [f for f in found if f.phase != "part" or f.name in held]
        merged = {name for part in held.values() for name in part["covers"]}
        covered = {name for own, part in held.items() if own not in merged for name in part["covers"]}
        live = [f for f in found if f.name not in covered]
        numbers = [f.number for f in live if f.phase == "iteration" and not f.discarded]
        numbers += [held[f.name]["last_iteration"] for f in live if f.phase == "part"]
        return Listing(
            sorted((f for f in live if f.phase != "part"), key=lambda f: (f.discarded, f.number, f.phase)),
            sorted((f for f in live if f.phase == "part"), key=lambda f: f.number),
            [f for f in found if f.name in covered],
            max((n for n in numbers if n is not None), default=None),
            max([f.discarded for f in found] + [part["discardings"] for part in held.values()], default=0),
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes and threads from changing the folder's JSON files."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # closing is not enough: a forked child may have it open, too
            os.close(descriptor)

    def _finish_replacing(self) -> None:
        """End what a writer that was killed began: a folder moved aside gets its name back, or goes."""
        for aside in self.path.glob(f"{_ASIDE}*"):
            final = self.path / aside.name.removeprefix(_ASIDE)
            if final.exists():
                delete_folder(aside)
            else:
                aside.rename(final)

    def _write_part(self, folders: list[RowFolder], listing: Listing) -> None:
        numbers = [f.number for f in folders if f.phase == "iteration" and not f.discarded]
        older = [read_json(f.path / PART_FILE)["last_iteration"] for f in folders if f.phase == "part"]
        parts = [f.number for f in (*listing.parts, *listing.covered) if f.phase == "part"]
        facts = {
            # Those of the parts that this one takes in, too, or they would count again once those are gone.
            "covers": [f.name for f in (*folders, *listing.covered)],
            "last_iteration": max([n for n in (*numbers, *older) if n is not None], default=None),
            "discardings": listing.discardings,
        }
        tables = sorted({table for folder in folders for table in folder.tables})
        rows = {table: partial(_merge, table, folders) for table in tables}
        put_folder(self.path, f"part-{max(parts, default=0) + 1:06d}", rows, {PART_FILE: facts})

    def _discard_in_part(self, part: RowFolder, number: int) -> None:
        """Write a part again without the rows above `number`, but with what their devices were paid for."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        facts = read_json(part.path / PART_FILE)
        if (
            max(map(_number, facts["covers"]), default=-1) <= number
            and (facts["last_iteration"] or 0) <= number
        ):
            return
        rows: dict[str, pa.Table] = {}
        for table, path in part.tables.items():
            content = pq.read_table(path)
            later = pc.field("iteration") > number
            if "phase" in content.schema.names:
                later &= pc.field("phase") != "discarded"
            rows[table] = content.filter(~later)
            if table in KEPT_OF_DISCARDED:
                rows[table] = pa.concat_tables([rows[table], as_discarded(content.filter(later))])
        left = rows["iterations"]["iteration"].to_pylist() if "iterations" in rows else []
        # Nothing that it covered is there any more, and their names may come again.
        facts |= {"covers": [], "last_iteration": max(left, default=None)}
        put_folder(self.path, part.name, rows, {PART_FILE: facts})

    def _refusals(self) -> AbstractContextManager[None]:
        return refusals(f"the run's folder {self.path}", "then resume the run")


@contextmanager
def refusals(what: str, then: str = "then try again") -> Iterator[None]:
    """Turn what the disk refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
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
    """Write a folder under another name, force it to disk and rename it, in place of an earlier one.

    Args:
        rows: table -> its rows, or what writes them into an open file.
        facts: JSON file -> what it holds.
        checkpoint: file -> content, of the folder `CHECKPOINT` in it; None for no such folder.
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
    if final.exists():  # no rename onto a full folder
        replaced = parent / f"{_ASIDE}{name}"
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        saving.rename(final)
        delete_folder(replaced)
    else:
        saving.rename(final)
    sync_folder(parent)


def is_whole(path: Path) -> bool:
    """Return True where a Parquet file can be read to its end; one that is gone cannot."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:  # `read_table` would import pandas
            file.read()
    except (OSError, pa.ArrowException):
        return False
    return True


def as_discarded(rows: pa.Table) -> pa.Table:
    """Return rows of devices as those of an iteration that is done again: phase `discarded`, state `lost`."""
    import pyarrow as pa

    for column, value in (("phase", "discarded"), ("state", "lost")):
        if column in rows.schema.names:
            place = rows.schema.get_field_index(column)
            rows = rows.set_column(place, column, pa.array([value] * rows.num_rows, pa.string()))
    return rows


def _merge(table: str, folders: Iterable[RowFolder], file: IO[bytes]) -> None:
    """Write a table's rows of many folders into one file, some at a time."""
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


def is_row_folder(name: str) -> bool:
    """Return True where a folder of this name in a run's folder holds rows."""
    return _ROWS.fullmatch(name) is not None


def row_folders(run: Path) -> list[RowFolder]:
    """Return all folders of rows; one that a killed writer moved aside counts under its own name."""
    try:
        names = set(os.listdir(run))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        own = name.removeprefix(_ASIDE)
        match = _ROWS.fullmatch(own)
        if match is None or (own != name and own in names):
            continue
        discarded, phase, number, part = match.groups()
        found.append(RowFolder(run / name, own, int(discarded or 0), phase or "part", int(number or part)))
    return found


def _number(name: str) -> int:
    """Return the iteration of a folder whose name may come again; -1 for all others."""
    match = _ROWS.fullmatch(name)
    return int(match[3]) if match and match[3] and not match[1] else -1


def _part(folder: RowFolder) -> dict[str, Any] | None:
    """Return what a part says of itself; None where it has gone, or a copy of it was cut off.

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


def _drop_rows(path: Path) -> None:
    """Delete a folder whose rows a part holds; a checkpoint in it stays."""
    if not (path / CHECKPOINT).exists():
        delete_folder(path)
        return
    for file in path.glob("*.parquet"):
        file.unlink(missing_ok=True)


def delete_folder(path: Path, run: Path | None = None) -> None:
    """Delete a folder so that no half of it is ever seen under its name.

    Args:
        path: the folder; it may be gone.
        run: the folder of the run, where this one is deeper than that.
    """
    deleting = (run or path.parent) / f".deleting-{path.name}-{time.time_ns()}"
    try:
        path.rename(deleting)
    except FileNotFoundError:
        return
    shutil.rmtree(deleting, ignore_errors=True)


def _changed_at(path: Path) -> float:
    """Return when a folder was last changed (Unix seconds); never, where it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _size(folder: RowFolder) -> int:
    return sum(path.stat().st_size for path in folder.tables.values())


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
        happened_at, texts = event["happened_at"], (event["kind"], event["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    is_sound = isinstance(happened_at, int | float) and all(isinstance(text, str) for text in texts)
    return event if is_sound else None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        StorageError: it is missing or damaged.
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
    writing = path.with_name(f".writing-{path.name}")
    # A path that is no UTF-8 gives an error text that cannot be encoded.
    text = json.dumps(values, ensure_ascii=False, indent=1).encode("utf-8", "replace")
    with writing.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    writing.replace(path)
    sync_folder(path.parent)


def write_durably(path: Path, content: bytes | bytearray | memoryview) -> None:
    """Write a new file; when this returns it is on disk.

    Raises:
        OSError: the disk refuses, or there is a file of that name.
    """
    # Each view ends with its block: an error keeps this frame, and a view that is left in it would keep the
    # caller from closing what it looks at.
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
