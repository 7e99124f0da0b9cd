"""The runs of a home: create, mark, record iteration by iteration, and find them."""

from __future__ import annotations

import difflib
import logging
import socket
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

import psutil

from storage.clock import may_be_alive, now, process_start_s
from storage.config.loading import stored_config
from storage.config.run_config import RunConfig
from storage.environment import (
    BUDGET,
    EARLIER_ENDS,
    ITERATIONS,
    SIMULATED,
    by_iteration,
    read_earlier_ends,
)
from storage.errors import ConfigurationError, RunNotFoundError, StorageError, quoted
from storage.home import Home
from storage.record.catalogue import refresh_catalogue
from storage.record.checkpoints import CheckpointStore
from storage.record.reading import RecordConnection
from storage.record.records import EvaluationRecord, IterationRecord, RunStatus
from storage.record.run_folder import COMPACTED_AT, NOTES_FILE, RUN_FILE, RunFolder
from storage.record.tables import Rows, evaluation_rows, iteration_rows


@dataclass(frozen=True)
class RunRow:
    """A run as described by its folder.

    Attributes:
        created_at: Unix seconds, as is `ended_at`, which is None while it is running.
        host, pid, process_started_at: the process that does (or last did) the work; the last is in seconds
            since the machine's boot, as setting the clock changes a process's Unix start time.
        settings: configuration as stored, JSON values.
        last_iteration: number of the last committed iteration; None before the first.
    """

    run_id: str
    name: str
    status: RunStatus
    created_at: float
    ended_at: float | None
    host: str
    pid: int
    process_started_at: float | None
    settings: dict[str, Any]
    environment: dict[str, str]
    summary: dict[str, Any]
    error: str | None
    last_iteration: int | None

    @property
    def config(self) -> RunConfig:
        """The run's configuration; a ConfigurationError if the settings are of another version."""
        return stored_config(self.settings, f"run {self.run_id}", "use the commit in its environment")

    @property
    def may_be_alive(self) -> bool:
        """True if the run's own process still runs here, or is on another machine, unseen from here."""
        return may_be_alive(self.host, self.pid, self.process_started_at)


@dataclass(frozen=True)
class RunNotes:
    """A person's notes about a run: tags in the order given, each once; lists leave archived runs out."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 40, 2000

_logger = logging.getLogger(__name__)

_IDENTITY = tuple(field.name for field in fields(RunRow) if field.name != "last_iteration")
"""The facts that come from run.json, where `settings` is called `config`."""


class RunStore:
    """Every run of a home. Cheap to make; keeps nothing open.

    Every method may raise StorageError: a run's folder is damaged, or the disk refuses. The store that
    created or resumed a run drives it; once another one does, it raises TakenOverError and changes nothing.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self._lives: dict[str, str] = {}

    def reading(self, *run_ids: str) -> closing[RecordConnection]:
        """Open a connection to the tables of the given runs, or of all; without a record they are empty."""
        return closing(RecordConnection(self.home, run_ids or None))

    def create_run(
        self,
        run_id: str,
        config: RunConfig,
        environment: Mapping[str, str],
        pid: int,
        at: float | None = None,
    ) -> None:
        """Add a new run with status `running`, done by process `pid` of this machine.

        Args:
            at: start of the run (Unix seconds); now by default.

        Raises:
            StorageError: a run already has that identifier.
        """
        self.home.refuse_earlier_layout()
        identity = {
            "run_id": run_id,
            "name": config.name,
            "status": "running",
            "created_at": now() if at is None else at,
            "ended_at": None,
            **_driver(pid),
            "config": config.model_dump(mode="json"),
            "environment": dict(environment),
            "summary": {},
            "error": None,
            "lives": [life := uuid.uuid4().hex],
            "resumed_after": 0,
        }
        if not self.folder(run_id).create(identity):
            raise StorageError(f"run {run_id} exists already; resume it, or take another identifier")
        self._lives[run_id] = life
        refresh_catalogue(self.home)

    def folder(self, run_id: str) -> RunFolder:
        """Return the folder of a run, whether or not it exists."""
        return RunFolder(self.home.run(run_id), self._lives.get(run_id, ""))

    def checkpoints(self, run_id: str) -> CheckpointStore:
        """Return the checkpoints of a run, as changed by its driver if this store drives it."""
        return CheckpointStore(self.home.run(run_id), self._lives.get(run_id, ""))

    def resume_run(self, run_id: str, pid: int) -> None:
        """Mark a run as `running` again, now done by process `pid` of this machine.

        Checking (`check_resumable`) and marking are one step: of two processes that resume a run, one wins.
        """
        folder, life = RunFolder(self.known(run_id).path), uuid.uuid4().hex

        def resumed(identity: dict[str, Any]) -> dict[str, Any]:
            check_resumable(_row(folder, identity), pid)
            begun = {"status": "running", "ended_at": None, "error": None, **_driver(pid)}
            after = max(CheckpointStore(folder.path).iterations(), default=0)
            return identity | begun | {"lives": [*identity["lives"], life], "resumed_after": after}

        folder.change(RUN_FILE, resumed)
        self._lives[run_id] = life
        refresh_catalogue(self.home)  # a home that was moved or fetched has none yet

    def take_over(self, row: RunRow) -> None:
        """Mark as `interrupted` a run whose process was on a machine that is gone or was renamed.

        Its process cannot be seen from here: the caller vouches that it is gone. Refuses a run of this
        machine, and one that another process has changed since.
        """
        taken_over(row)
        host = socket.gethostname()
        if not self._interrupt(row, f"taken over by {host} from process {row.pid} of {row.host}"):
            raise ConfigurationError(
                f"run {row.run_id!r} was taken over meanwhile; see it with `spotlight runs`"
            )
        self.add_event(row.run_id, "taken_over", f"by {host}, from process {row.pid} of {row.host}")

    def set_status(
        self, run_id: str, status: RunStatus, error: str | None = None, at: float | None = None
    ) -> None:
        """Record the status of a run; any status but `running` also sets its end.

        Args:
            at: time of that end in Unix seconds; None for now.
        """
        if status not in get_args(RunStatus):
            raise StorageError(f"status {status!r} is none of {', '.join(get_args(RunStatus))}")
        ended_at = None if status == "running" else now() if at is None else at
        changed = {"status": status, "ended_at": ended_at, "error": error}
        self.known(run_id).change(RUN_FILE, lambda run: run | changed)

    def set_limits(self, run_id: str, config: RunConfig) -> None:
        """Change the total number of iterations of a run and its budget; a finished run can then be resumed.

        Other settings in `config` are ignored; `check_iterations` says what is refused.
        """
        folder, limits = self.known(run_id), config.model_dump(mode="json", include={"iterations", "budget"})
        before: dict[str, float] = {}

        def changed(identity: dict[str, Any]) -> dict[str, Any]:
            row = _row(folder, identity)
            check_iterations(row, config.iterations)
            before.update(_limits(row.config))
            again = {"status": "interrupted", "error": None} if identity["status"] == "finished" else {}
            facts = row.environment | _earlier_end(row, config)
            settings = identity["config"] | limits
            return identity | again | {"config": settings, "environment": facts, "summary": {}}

        folder.change(RUN_FILE, changed)
        for name, value in _limits(config).items():
            if before[name] != value:
                self.add_event(run_id, "limits", f"{name} is now {value}, was {before[name]}")

    def set_fact(self, run_id: str, name: str, value: str) -> None:
        """Store a fact with a run's environment, replacing any earlier value."""
        self.known(run_id).change(
            RUN_FILE, lambda run: run | {"environment": run["environment"] | {name: value}}
        )

    def set_summary(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Store a run's named results (JSON values), replacing earlier ones."""
        self.known(run_id).change(RUN_FILE, lambda run: run | {"summary": dict(summary)})

    def commit_iteration(self, record: IterationRecord) -> None:
        """Write an iteration's rows by one rename; a run that went back first discards what it repeats."""
        self.known(record.run_id).commit("iteration", record.iteration, iteration_rows(record))

    def commit_evaluation(self, record: EvaluationRecord) -> None:
        """Write an evaluation's rows by one rename, replacing earlier ones."""
        self.known(record.run_id).commit("evaluation", record.iteration, evaluation_rows(record))

    def note_unfinished(
        self, run_id: str, phase: str, number: int, rows: Rows, before: tuple[str, int] | None = None
    ) -> None:
        """Replace the paid work without a record; no reader counts it.

        Args:
            phase, number: the `iteration` or `evaluation` that the work belongs to.
            rows: its rows; those of tables other than `KEPT_OF_DISCARDED` are ignored.
            before: phase and number that the same work had so far.
        """
        self.known(run_id).note_unfinished(phase, number, rows, before)

    def settle_unfinished(self, run_id: str, counts: bool = True, spared: str = "") -> None:
        """Count paid work without a record as discarded, or drop it, because the run's process ends.

        Args:
            counts: False to drop it.
            spared: name of an iteration or evaluation that is being recorded, whose work stays.
        """
        self.known(run_id).settle_unfinished(counts, spared)

    def add_event(self, run_id: str, kind: str, message: str) -> None:
        """Record something a person should see beside the figures (a resume, a preemption, a warning)."""
        self.known(run_id).add_event({"happened_at": now(), "kind": kind, "message": message})

    def notes(self) -> dict[str, RunNotes]:
        """Return the notes by run; runs without any are left out."""
        noted = {run_id: self.folder(run_id).notes() for run_id in self.home.run_ids()}
        return {run_id: _notes(values) for run_id, values in noted.items() if "notes" in values}

    def notes_of(self, run_id: str) -> RunNotes:
        """Return the notes about one run."""
        return _notes(self.folder(run_id).notes())

    def change_notes(
        self,
        run_id: str,
        *,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> None:
        """Change the notes about a run, even while it is at work.

        Args:
            tags, note, archived: None keeps a value.

        Raises:
            ConfigurationError: a tag or the note is too long, or there are too many tags.
            RunNotFoundError: no run has that identifier.
        """
        kept = tuple(dict.fromkeys(tag.strip() for tag in tags or () if tag.strip()))
        if too_long := [tag for tag in kept if len(tag) > LONGEST_TAG]:
            raise ConfigurationError(
                f"tag {quoted(too_long[0])} has {len(too_long[0])} characters, at most {LONGEST_TAG} are "
                "kept; shorten it"
            )
        if len(kept) > MOST_TAGS:
            raise ConfigurationError(f"{len(kept)} tags are given, a run has at most {MOST_TAGS}; drop some")
        if note is not None and len(note) > LONGEST_NOTE:
            raise ConfigurationError(
                f"the note has {len(note):,} characters, at most {LONGEST_NOTE:,} are kept; shorten it"
            )
        given = {
            "tags": None if tags is None else kept,
            "note": None if note is None else note.strip(),
            "archived": archived,
        }
        changed = {name: value for name, value in given.items() if value is not None}

        def noted(values: dict[str, Any]) -> dict[str, Any]:
            return values | {"notes": asdict(_notes(values)) | changed | {"changed_at": now()}}

        self.known(run_id).change(NOTES_FILE, noted)

    def link(self, run_id: str, place: str, address: str) -> None:
        """Record another page of a run at a place, such as `prefect`, replacing an earlier address.

        Raises:
            RunNotFoundError: no run has that identifier.
        """
        link = {"address": address, "noted_at": now()}
        self.known(run_id).change(
            NOTES_FILE, lambda values: values | {"links": values.get("links", {}) | {place: link}}
        )

    def links(self, run_id: str) -> dict[str, str]:
        """Return the addresses of other pages of a run, by place."""
        links = self.folder(run_id).notes().get("links", {})
        return {place: link["address"] for place, link in links.items()}

    def discard_after(self, run_id: str, iteration: int) -> None:
        """Drop iterations and evaluations above `iteration`; a resumed run does them again."""
        self.known(run_id).discard_after(iteration)

    def compact(self, run_id: str, before: int | None = None) -> None:
        """Write rows of many iterations into one file per table, if there are enough of them.

        Args:
            before: oldest iteration to which the run may go back; None for all, as it has ended.
        """
        try:
            self.known(run_id).compact(before, COMPACTED_AT if before is not None else 2)
        except StorageError as error:  # the rows still exist
            _logger.warning("the rows of run %s stay in many files: %s", run_id, error)

    def sweep_ended(self) -> None:
        """Delete what ended runs no longer need: folders whose rows a part holds."""
        for row in self.runs():
            if row.status != "running":
                try:
                    self.folder(row.run_id).sweep()
                except StorageError as error:  # it only costs disk space
                    _logger.warning("run %s keeps files that it does not need: %s", row.run_id, error)

    def reconcile(self, reason: str = "") -> list[str]:
        """Mark as `interrupted` the runs of this machine whose process is gone; return their identifiers."""
        gone = [row for row in self.runs() if row.status == "running" and not row.may_be_alive]
        marked: list[str] = []
        for row in gone:
            ended = f"its process {row.pid} ended without a message"
            try:
                if self._interrupt(row, f"{ended}: {reason}" if reason else ended):
                    marked.append(row.run_id)
            except StorageError as error:  # runs can still be viewed
                _logger.warning("run %s cannot be marked as interrupted: %s", row.run_id, error)
        return marked

    def run(self, run_id: str) -> RunRow:
        """Return a run as described by its folder; refuse one that does not exist as `known` does."""
        folder = self.known(run_id)
        return _row(folder, folder.identity())

    def runs(self) -> list[RunRow]:
        """Return all runs, newest first."""
        self.home.refuse_earlier_layout()
        folders = [folder for folder in map(self.folder, self.home.run_ids()) if folder.exists]
        described = [(folder, folder.identity()) for folder in folders]
        rows = [_row(folder, identity) for folder, identity in described if not folder.is_copy(identity)]
        return sorted(rows, key=lambda row: (row.created_at, row.run_id), reverse=True)

    def known(self, run_id: str) -> RunFolder:
        """Return the folder of a run that must exist; the error suggests similar identifiers.

        Raises:
            RunNotFoundError: no run has that identifier.
            StorageError: it is a copy of another run.
        """
        folder = self.folder(run_id)
        if folder.exists:
            if folder.copied:
                raise StorageError(folder.copied)
            return folder
        known = [row.run_id for row in self.runs()]
        hint = f"; the latest are {', '.join(known[:5])}"
        if not known:
            hint = ": there are none yet; start one with `spotlight train`"
        elif near := difflib.get_close_matches(run_id, known, n=3):
            hint = f"; did you mean {', '.join(near)}?"
        raise RunNotFoundError(f"no run {quoted(run_id)}{hint}")

    def _interrupt(self, row: RunRow, error: str) -> bool:
        folder = self.folder(row.run_id)
        read = {"status": "running", "host": row.host, "pid": row.pid}
        read["process_started_at"] = row.process_started_at

        def interrupted(identity: dict[str, Any]) -> dict[str, Any] | None:
            if any(identity[name] != value for name, value in read.items()):
                return None
            folder.settle_in_lock()
            return identity | {"status": "interrupted", "ended_at": now(), "error": error}

        return folder.change(RUN_FILE, interrupted)


def check_resumable(row: RunRow, pid: int | None = None) -> None:
    """Refuse to resume a run that is finished or simulated, or that another process than `pid` works on."""
    refuse_simulated(row)
    if row.status == "finished" and row.error:
        raise ConfigurationError(f"run {row.run_id!r} ended early: {row.error}")
    if row.status == "finished":
        raise ConfigurationError(
            f"run {row.run_id!r} is finished after {row.last_iteration} iterations; for more of them: "
            f"`spotlight resume {row.run_id} --iterations N`"
        )
    host = socket.gethostname()
    if row.status != "running" or (row.host == host and row.pid == pid and row.may_be_alive):
        return
    message = (
        f"run {row.run_id!r} is running in process {row.pid} on {row.host}; wait for it or end that process "
        "first"
    )
    if row.host != host:
        message += (
            f", or, if that machine is gone or was renamed to {host}, take the run over with "
            f"`spotlight resume {row.run_id} --take-over`"
        )
    raise ConfigurationError(message)


def taken_over(row: RunRow) -> RunRow:
    """Return a run as it will be read once it is taken over; refuse one of this machine."""
    host = socket.gethostname()
    if row.host == host:
        raise ConfigurationError(
            f"run {row.run_id!r} is running in process {row.pid} on this machine ({host}); taking over "
            "is for runs of another one: wait for it or end that process first"
        )
    return replace(row, status="interrupted")


def check_iterations(row: RunRow, iterations: int) -> None:
    """Refuse a total of iterations that a run has already done, or a run that another process works on."""
    done = row.last_iteration or 0
    lacks_its_end = row.status != "finished" and iterations == done == row.config.iterations
    if iterations <= done and not lacks_its_end:
        raise ConfigurationError(
            f"run {row.run_id!r} has done {done} iterations; --iterations is the total number, and "
            f"{iterations} is not more"
        )
    check_resumable(replace(row, status="interrupted") if row.status == "finished" else row)


def refuse_simulated(row: RunRow) -> None:
    """Refuse a run that was only simulated."""
    if SIMULATED in row.environment:
        raise ConfigurationError(
            f"run {row.run_id!r} was simulated by `spotlight what-if`, so none of it ran; name a recorded one"
        )


def _row(folder: RunFolder, identity: Mapping[str, Any]) -> RunRow:
    try:
        values = {name: identity["config" if name == "settings" else name] for name in _IDENTITY}
    except KeyError as error:
        raise StorageError(
            f"{folder.path / RUN_FILE} lacks {error}; restore the file, or move the run's folder out of the "
            "home"
        ) from error
    return RunRow(**values, last_iteration=folder.listing().last_iteration)


def _notes(values: Mapping[str, Any]) -> RunNotes:
    noted = values.get("notes", {})
    return RunNotes(tuple(noted.get("tags", ())), noted.get("note", ""), noted.get("archived", False))


def _earlier_end(row: RunRow, config: RunConfig) -> dict[str, str]:
    """Return the facts of a run that continues after its end with another limit; empty if not ended."""
    done = row.last_iteration or 0
    limit = BUDGET if row.status == "finished" else ""
    if done == row.config.iterations < config.iterations:  # maybe killed in the evaluation after it
        limit = ITERATIONS
    if not (done and limit):
        return {}
    # Of two ends after one iteration the first one counts: it drafted for the next iteration, or did not.
    return {EARLIER_ENDS: by_iteration({done: limit} | read_earlier_ends(row.environment))}


def _limits(config: RunConfig) -> dict[str, float]:
    limits = config.budget
    return {"iterations": config.iterations, "budget.usd": limits.usd, "budget.hours": limits.hours}


def _driver(pid: int) -> dict[str, Any]:
    """Return the facts that identify a process of this machine; its start is None if it has ended."""
    try:
        started_s = process_start_s(pid)
    except psutil.Error:
        started_s = None
    return {
        "host": socket.gethostname(), "pid": pid, "process_started_at": started_s, "driven_since": now()
    }  # fmt: skip
