"""The folder of one run, which holds its whole record; nothing else must be kept in sync.

    run.json             identity, settings, environment, status, the process that drives it
    notes.json           a person's tags, note and archive mark, and links to other pages
    events.jsonl         events that a person should see and the run's log, one line each, append-only
    output/              what its local workers and scorers print, a file each, of 1 MiB or little more
    iteration-000012/    rows of an iteration, a Parquet file per table, and if due its `checkpoint/`
    evaluation-000012/   rows of the held-out evaluation after it
    unfinished-iteration-000013/    paid time of the iteration under way; no reader counts it
    discarded-0001-iteration-000012/    paid time of an iteration that is done again
    part-000001/         rows of many of these folders, one file per table

Invariants:
- A folder of rows appears by one rename, whole, its checkpoint included, and its files never change
  afterwards. A checkpoint that is too old is deleted alone; the rows stay.
- A part names the folders whose rows it holds. Readers ignore those as soon as it appears, so that no row
  counts twice; the folders are deleted some minutes later, as a reader may have them open.
- Discarding renames folders one by one, the latest iteration first: a kill between two leaves a run that ends
  a little later.
- An unfinished folder becomes a discarded one by one rename, unless its iteration has been recorded.
- A process that changes run.json or notes.json or adds an event holds the folder's lock for that moment. So
  does the run's driver when it renames a folder; it first compares its life with the newest in run.json. One
  that was taken over writes nothing, even if the locks of two hosts do not see each other.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from storage.errors import StorageError, TakenOverError
from storage.home import Home
from storage.record.files import (
    ASIDE,
    CHECKPOINT,
    KEPT_OF_DISCARDED,
    PART_FILE,
    UNFINISHED,
    Listing,
    RowFolder,
    as_discarded,
    delete_folder,
    is_whole,
    locked,
    merge_rows,
    part_facts,
    put_folder,
    read_json,
    refusals,
    repeatable_number,
    row_folders,
    sync_folder,
    write_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

RUN_FILE, NOTES_FILE, EVENTS_FILE = "run.json", "notes.json", "events.jsonl"

INSTANCES_FILE = "instances.json"
"""The file with the names of a run's rented instances, if its provider keeps them."""

COMPACTED_AT = 64
"""The number of row folders at which they are merged into one part."""

REPLACED_STAY_S = 600.0
"""Seconds that folders stay after a part holds their rows: a query that listed them may still read them."""

_LARGEST_PART_BYTES = 64 << 20


class RunFolder:
    """A reader and writer of a run's folder. Cheap to make; keeps nothing open.

    Methods that write raise StorageError if the disk refuses, and TakenOverError if this process drove the
    run and another one does by now.

    Args:
        life: identifier of the life of the run that this process drives; empty for any other process.
    """

    def __init__(self, path: Path, life: str = "") -> None:
        self.path, self.life = path, life

    @property
    def run_id(self) -> str:
        """The run's identifier."""
        return unquote(self.path.name)

    @property
    def exists(self) -> bool:
        """True if there is a run: its folder has a `run.json`."""
        return os.path.isfile(self.path / RUN_FILE)  # False for a name that no folder can have

    @property
    def copied(self) -> str:
        """The problem with a run's folder that was copied or renamed; empty for any other."""
        identity: dict[str, Any] = {}
        with suppress(StorageError):  # damaged: reading it reports that
            identity = self.identity()
        if not self.is_copy(identity):
            return ""
        named = identity["run_id"]
        original = Home(self.path.parent.parent).run(str(named))
        if not RunFolder(original).exists:
            return (
                f"{self.path} is run {named!r} under another name, and is skipped; rename the folder to "
                f"{original.name}"
            )
        return (
            f"{self.path} is a copy of run {named!r} under another name, and is skipped, as its rows would "
            "count twice; move the folder out of the home"
        )

    def is_copy(self, identity: Mapping[str, Any]) -> bool:
        """Return True if its run.json names another run, whose rows would count twice."""
        return identity.get("run_id") not in (None, self.run_id)

    def create(self, identity: Mapping[str, Any]) -> bool:
        """Make the folder with its run.json; return False if there is a run already."""
        with self._refusals(), self.locked():
            if self.exists:
                return False
            (self.path / EVENTS_FILE).touch()
            write_json(self.path / RUN_FILE, identity)
            return True

    def identity(self) -> dict[str, Any]:
        """Return the content of run.json; a StorageError if it is damaged or missing."""
        return read_json(self.path / RUN_FILE)

    def change(self, file: str, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> bool:
        """Replace run.json or notes.json by the result of `change`; return False if that is None.

        Args:
            file: `RUN_FILE` or `NOTES_FILE`; a missing one counts as empty.
            change: function from the present values to the new ones, called under the folder's lock.
        """
        path = self.path / file
        with self._refusals(), self.locked():
            self.refuse_if_taken_over()
            changed = change(read_json(path) if path.exists() else {})
            if changed is not None:
                write_json(path, changed)
            return changed is not None

    def notes(self) -> dict[str, Any]:
        """Return the content of notes.json; empty if there are no notes."""
        path = self.path / NOTES_FILE
        return read_json(path) if path.exists() else {}

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Append an event (JSON values); when this returns it is on disk."""
        with self._refusals(), self.locked():
            self.refuse_if_taken_over()
            self.append(event, durably=True)

    def append(self, values: Mapping[str, Any], durably: bool = False) -> None:
        """Append a line to events.jsonl; one of the log has `log` first. May raise OSError."""
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

    def lines(self, position: int = 0, logs: bool = True) -> tuple[list[Any], int]:
        """Return the complete lines of events.jsonl after a position, as JSON values, and the new position.

        Args:
            position: number of bytes to skip, or if negative the number of last bytes to read; a line that is
                torn or being written is left for the next call.
            logs: True to include log lines, which are not events.
        """
        try:
            with (self.path / EVENTS_FILE).open("rb") as opened:
                size = opened.seek(0, os.SEEK_END)
                begin = opened.seek(position if position >= 0 else max(0, size + position))
                content = opened.read()
        except FileNotFoundError:
            return [], position
        complete, found = content[: content.rfind(b"\n") + 1], list[Any]()
        with suppress(ValueError, RecursionError):
            json.loads(content[len(complete) :])
            complete = content  # the last line lacks only its newline
        for line in complete.splitlines():
            if logs or not line.startswith(b'{"log":'):  # before it is parsed
                with suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
        return found, begin + len(complete)

    def events(self) -> list[dict[str, Any]]:
        """Return the events in their order, each with its `event_id` (from 1); torn lines are left out."""
        found: list[dict[str, Any]] = []
        for line in self.lines(logs=False)[0]:
            match line:
                case {"happened_at": int() | float(), "kind": str(), "message": str()}:
                    found.append({"event_id": len(found) + 1, **line})
        return found

    def commit(self, phase: str, number: int, rows: Mapping[str, pa.Table]) -> None:
        """Make the rows of an `iteration` or an `evaluation` durable, replacing earlier ones."""
        with self._refusals():
            self.put(f"{phase}-{number:06d}", rows)

    def note_unfinished(
        self, phase: str, number: int, rows: Mapping[str, pa.Table], before: tuple[str, int] | None = None
    ) -> None:
        """Replace the paid work of an iteration or evaluation that has no record yet.

        Args:
            phase, number: that `iteration` or `evaluation`.
            rows: its rows by table; those that a discarded iteration does not keep are ignored.
            before: phase and number that the same work had so far, which is deleted.
        """
        with self._refusals():
            with self.fenced():
                unfinished = self._unfinished()
                if before and (path := unfinished.get(f"{before[0]}-{before[1]:06d}")):
                    delete_folder(path)
            kept = {table: content for table, content in rows.items() if table in KEPT_OF_DISCARDED}
            self.put(f"{UNFINISHED}{phase}-{number:06d}", kept)

    def settle_unfinished(self, counts: bool = True, spared: str = "") -> None:
        """Discard the paid work without a record of a process that has ended, or is about to.

        Args:
            counts: False to delete it, since the run has done all its work.
            spared: name of an iteration or evaluation that is being recorded, whose work stays.
        """
        with self._refusals(), self.fenced():
            self.settle_in_lock(counts, spared)

    def settle_in_lock(self, counts: bool = True, spared: str = "") -> None:
        """Do what `settle_unfinished` does, for a caller that holds the folder's lock."""
        number = self.listing().discardings + 1
        for name, path in self._unfinished().items():
            if name == spared:
                continue
            if counts:
                path.rename(self.path / f"discarded-{number:04d}-{name}")
            else:
                delete_folder(path)
        sync_folder(self.path)

    def _unfinished(self) -> dict[str, Path]:
        """Return the folders of paid work without a record, by the name of that; delete those with one."""
        listing = self.listing()
        recorded = {folder.name for folder in (*listing.folders, *listing.covered)}
        found = {path.name.removeprefix(UNFINISHED): path for path in self.path.glob(f"{UNFINISHED}*")}
        for name in found.keys() & recorded:
            delete_folder(found.pop(name))
        return found

    def discard_after(self, number: int) -> None:
        """Drop the iterations and evaluations above `number`; the paid time of their devices stays."""
        with self._refusals(), self.fenced():
            for aside in self.path.glob(f"{ASIDE}*"):  # finish a killed writer's work
                final = self.path / aside.name.removeprefix(ASIDE)
                if final.exists():
                    delete_folder(aside)
                else:
                    aside.rename(final)
            self.settle_in_lock()
            listing = self.listing()
            for folder in listing.covered:  # their names may be reused, and no part may hide them then
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
        """Write the rows of many folders into one part, if there are enough of them.

        Args:
            before: oldest iteration to which the run may go back: only rows below it may be compacted. None
                for all, as the run has ended.
        """
        with self._refusals():
            listing = self.listing()
            found = [f for f in listing.folders if before is None or (f.number < before and not f.discarded)]
            if len(found) < at_least:
                return
            sizes = {
                part: sum(path.stat().st_size for path in part.tables.values()) for part in listing.parts
            }
            small = [part for part, size_bytes in sizes.items() if size_bytes < _LARGEST_PART_BYTES]
            if before is None or len(small) >= COMPACTED_AT:
                found = [*small, *found]
            # A folder with a damaged file stays unchanged: the part would lose its rows for good.
            folders = [f for f in found if all(is_whole(path) for path in f.tables.values())]
            if len(folders) < at_least:
                return
            last = [f.number for f in folders if f.phase == "iteration" and not f.discarded]
            last += [read_json(f.path / PART_FILE)["last_iteration"] for f in folders if f.phase == "part"]
            facts = {
                # Also those of the parts that this one absorbs: they would count again once those are gone.
                "covers": [f.name for f in (*folders, *listing.covered)],
                "last_iteration": max((n for n in last if n is not None), default=None),
                "discardings": listing.discardings,
            }
            rows = {
                table: partial(merge_rows, table, folders)
                for table in sorted({t for f in folders for t in f.tables})
            }
            parts = [f.number for f in (*listing.parts, *listing.covered) if f.phase == "part"]
            self.put(f"part-{max(parts, default=0) + 1:06d}", rows, {PART_FILE: facts})
            with self.fenced():
                self.sweep()

    def sweep(self, stay_s: float = REPLACED_STAY_S) -> None:
        """Delete folders whose rows a part holds, and remains of killed writers, if older than `stay_s`."""
        with self._refusals():
            old = time.time() - stay_s
            for part in self.listing().parts:
                if _changed_at(part.path) < old:
                    for name in read_json(part.path / PART_FILE)["covers"]:
                        _drop_rows(self.path / name)
            for path in self.path.glob(".*-*"):
                # A folder moved aside is the only copy if no folder has its name.
                is_needed = path.name.startswith(ASIDE) and not (self.path / path.name[len(ASIDE) :]).exists()
                if path.is_dir() and _changed_at(path) < old and not is_needed:
                    shutil.rmtree(path, ignore_errors=True)

    def damaged(self) -> list[Path]:
        """Return the files of rows that count and cannot be read."""
        listing = self.listing()
        folders = [*listing.parts, *listing.folders]
        paths = [path for folder in folders for path in folder.tables.values()]
        return [path for path in paths if path.exists() and not is_whole(path)]

    def set_aside_damaged(self) -> list[Path]:
        """Rename damaged files so that they are not read; return their original names."""
        with self._refusals():
            damaged = self.damaged()
            for path in damaged:
                path.rename(path.with_name(f"{path.name}.damaged"))
            return damaged

    def listing(self) -> Listing:
        """List the folders whose rows count now."""
        while True:
            # Until two lists agree: a folder renamed meanwhile may be in neither place, or in both.
            found = row_folders(self.path)
            held = {f.name: part for f in found if f.phase == "part" and (part := part_facts(f)) is not None}
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

    def put(
        self,
        name: str,
        rows: Mapping[str, pa.Table | Callable[[IO[bytes]], None]],
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        checkpoint: Mapping[str, bytes | bytearray | memoryview] | None = None,
    ) -> None:
        """Write a folder of rows, and rename it under the fence. May raise OSError.

        Args: those of `put_folder`.
        """
        self.refuse_if_taken_over()  # before anything is written, and again before the rename
        try:
            put_folder(self.path, name, rows, facts, checkpoint, self.life, self.fenced)
        except FileNotFoundError:
            self.refuse_if_taken_over()  # the new driver deletes what it finds half written
            raise

    def locked(self) -> AbstractContextManager[bool]:
        """Keep other processes and threads from changing the folder."""
        return locked(self.path / ".lock")

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Hold the lock while the run's driver changes folders; nothing is held or checked without a life."""
        if not self.life:
            yield
            return
        with self.locked():
            self.refuse_if_taken_over()
            yield

    def refuse_if_taken_over(self) -> None:
        """Raise TakenOverError if this is a driver's folder, and another process drives the run by now."""
        if not self.life or (run := self.identity())["lives"][-1] == self.life:
            return
        at = run.get("driven_since")  # like `resumed_after`, unknown if an earlier version took over
        since = at and f", since {datetime.fromtimestamp(at).astimezone().isoformat(' ', 'seconds')}"
        after = run.get("resumed_after")
        raise TakenOverError(
            f"another process has taken over run {self.run_id!r} (process {run['pid']} on {run['host']}"
            f"{since or ''}); this one stops, and nothing of it is kept after "
            f"{'the last checkpoint' if after is None else f'iteration {after}'}"
        )

    def is_taken_over(self) -> bool:
        """Return True if `refuse_if_taken_over` would refuse."""
        try:
            self.refuse_if_taken_over()
        except StorageError as error:  # of another kind without a run.json, so no process drives the run
            return isinstance(error, TakenOverError)
        return False

    def _discard_in_part(self, part: RowFolder, number: int) -> None:
        """Rewrite a part without the rows above `number`, but with the paid time of their devices."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        facts = read_json(part.path / PART_FILE)
        if (
            max(map(repeatable_number, facts["covers"]), default=-1) <= number
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
        # The folders that it covered are gone, and their names may be reused.
        facts |= {"covers": [], "last_iteration": max(left, default=None)}
        put_folder(self.path, part.name, rows, {PART_FILE: facts})

    def _refusals(self) -> AbstractContextManager[None]:
        return refusals(f"the run's folder {self.path}", "then resume the run")


def bare_folders(home: Home) -> str:
    """Return the problems with folders that describe no run, or another one; empty if there are none."""
    # A host with only a run's workers holds the history that they write; a killed start leaves a log.
    bare = [
        run_id
        for run_id in home.run_ids()
        if not RunFolder(home.run(run_id)).exists
        and set(os.listdir(home.run(run_id))) not in ({"history"}, {EVENTS_FILE}, {"history", EVENTS_FILE})
    ]
    # Also those with names that no run gets, such as `RUN (copy)`.
    described = sorted(home.runs.glob(f"[!._]*/{RUN_FILE}"))
    copies = list(filter(None, (RunFolder(file.parent).copied for file in described)))
    problems = [f"{copies[0]} ({len(copies)} such folders in {home.runs})"] if copies else []
    if bare:
        problems.append(
            f"{home.run(bare[0])} has no {RUN_FILE} ({len(bare)} such folders in {home.runs}); copy it again "
            "from an intact copy, or move the folder out of the home"
        )
    return "; ".join(problems)


def _drop_rows(path: Path) -> None:
    """Delete a folder whose rows a part holds; a checkpoint in it stays."""
    if not (path / CHECKPOINT).exists():
        delete_folder(path)
        return
    for file in path.glob("*.parquet"):
        file.unlink(missing_ok=True)


def _changed_at(path: Path) -> float:
    """Return when a folder was last changed (Unix seconds); infinity if it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
