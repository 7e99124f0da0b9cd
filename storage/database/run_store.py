"""Runs in the database: made, marked, recorded iteration by iteration, and found again.

What is written about a run goes into its journal too, in the same transaction: from it the rows can be made
again (`storage/database/rebuilding.py`).
"""

from __future__ import annotations

import difflib
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import duckdb
import psutil

from storage.clock import now, process_start_s
from storage.config.run_config import RunConfig
from storage.config.stored import stored_config
from storage.database.backups import back_up
from storage.database.database import LOCK_WAIT_S, Database
from storage.database.journal import EntryKind, Journal, journal_line
from storage.database.record_writing import discard_iterations, write_evaluation, write_iteration
from storage.database.records import EvaluationRecord, IterationRecord, RunStatus
from storage.database.run_status import run_is_alive
from storage.environment import SIMULATED
from storage.errors import ConfigurationError, RunNotFoundError, StorageError, quoted
from storage.home import Home

_RUN_COLUMNS = (
    "run_id, name, status, created_at, ended_at, host, pid, process_started_at, config AS config_json, "
    "environment, summary, error, "
    "(SELECT max(iteration) FROM iterations i WHERE i.run_id = r.run_id) AS last_iteration"
)


@dataclass(frozen=True)
class RunRow:
    """A run as the database knows it.

    Attributes:
        created_at: Unix seconds; `ended_at` likewise, None while it goes on.
        host, pid, process_started_at: the process that does (or last did) the work; the last is in seconds
            since the machine's boot, as setting the clock changes a process's Unix time of start.
        config_json: the configuration as it was stored.
        environment: versions, commit, device and the like.
        summary: named results, set at the end.
        error: why it failed, else None.
        last_iteration: number of the last committed iteration, None before the first.
    """

    run_id: str
    name: str
    status: RunStatus
    created_at: float
    ended_at: float | None
    host: str
    pid: int
    process_started_at: float | None
    config_json: str
    environment: dict[str, str]
    summary: dict[str, Any]
    error: str | None
    last_iteration: int | None

    @property
    def config(self) -> RunConfig:
        """The run's configuration.

        Raises:
            ConfigurationError: it was stored by a version whose settings this one does not know.
        """
        return stored_config(self.config_json, f"run {self.run_id}", "use the commit in its environment")


class RunStore:
    """Every run of a home. Cheap to make; keeps no connection open.

    Args:
        home: where the database lies.
        wait_s: how long to wait for the database's lock, in seconds.

    Every method may raise StorageError: the database stayed locked, or is of another version.
    """

    def __init__(self, home: Home, wait_s: float = LOCK_WAIT_S) -> None:
        self.home = home
        self.database = Database(home.database, wait_s)

    def create_run(
        self,
        run_id: str,
        config: RunConfig,
        environment: Mapping[str, str],
        pid: int,
        at: float | None = None,
    ) -> None:
        """Enter a new run, status `running`, done by process `pid` of this machine.

        Args:
            run_id: its identifier.
            config: its configuration.
            environment: versions and digests, by name.
            pid: of the process that does it.
            at: when it began (Unix seconds); now by default.

        Raises:
            StorageError: there is a run of that identifier already.
        """
        began_at = now() if at is None else at
        with self.database.writing() as connection:
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [run_id]).fetchone():
                raise StorageError(f"run {run_id} exists already; resume it, or take another identifier")
            connection.execute(
                "INSERT INTO runs VALUES (?, ?, 'running', ?, NULL, ?, ?, ?, ?, ?, '{}', NULL)",
                [
                    run_id, config.name, began_at, socket.gethostname(), pid, _process_start(pid),
                    config.model_dump_json(), json.dumps(dict(environment)),
                ],
            )  # fmt: skip
            self._note_run(connection, run_id)

    def resume_run(self, run_id: str, pid: int) -> None:
        """Mark a run as `running` again, now done by process `pid` of this machine.

        Looking and marking are one transaction: of two processes that resume a run at once, one wins.

        Raises:
            ConfigurationError: the run is finished, or another process works on it.
        """
        if not self._journal(run_id).size_bytes:  # begun by a version that kept none: its rows so far
            back_up(self.home, self.database.wait_s)
        values = [socket.gethostname(), pid, _process_start(pid)]
        with self.database.writing() as connection:
            self._require(connection, run_id)
            check_resumable(run_rows(connection, "WHERE run_id = ?", [run_id])[0], pid)
            assignments = "status = 'running', ended_at = NULL, error = NULL, host = ?, pid = ?, "
            self._update(connection, run_id, f"{assignments}process_started_at = ?", values)

    def take_over(self, row: RunRow) -> None:
        """Mark as `interrupted` a run whose process was on a machine that is gone or was renamed.

        Its process cannot be seen from here: that it is gone is the caller's word.

        Args:
            row: the run as it was looked at.

        Raises:
            ConfigurationError: the run is of this very machine, or another process has changed it since.
        """
        host = socket.gethostname()
        if row.host == host:
            raise ConfigurationError(
                f"run {row.run_id!r} is going on in process {row.pid} of this machine ({host}); taking over "
                "is for runs of another one: wait for it or end that process first"
            )
        with self.database.writing() as connection:
            if not self._interrupt(
                connection, row, f"taken over by {host} from process {row.pid} of {row.host}"
            ):
                raise ConfigurationError(
                    f"run {row.run_id!r} has changed hands meanwhile; look at it with `spotlight runs`"
                )
        self.add_event(row.run_id, "taken_over", f"by {host}, from process {row.pid} of {row.host}")

    def set_status(self, run_id: str, status: RunStatus, error: str | None = None) -> None:
        """Note how a run stands; any status but `running` also notes the time as its end.

        Args:
            run_id: the run.
            status: from now on.
            error: why it failed.
        """
        if status not in get_args(RunStatus):
            raise StorageError(f"status {status!r} is none of {', '.join(get_args(RunStatus))}")
        ended_at = None if status == "running" else now()
        with self.database.writing() as connection:
            self._update(connection, run_id, "status = ?, ended_at = ?, error = ?", [status, ended_at, error])

    def set_fact(self, run_id: str, name: str, value: str) -> None:
        """Store a fact with a run's environment, in place of an earlier value.

        Args:
            run_id: the run.
            name: of the fact.
            value: as text.
        """
        with self.database.writing() as connection:
            self._require(connection, run_id)
            [row] = run_rows(connection, "WHERE run_id = ?", [run_id])
            self._update(connection, run_id, "environment = ?", [json.dumps(row.environment | {name: value})])

    def set_summary(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """Store a run's named results (JSON values), in place of earlier ones."""
        with self.database.writing() as connection:
            self._update(connection, run_id, "summary = ?", [json.dumps(dict(summary))])

    def commit_iteration(self, record: IterationRecord) -> None:
        """Write an iteration's rows in one transaction; writing the same again changes nothing."""
        # What only a resume needs is in the checkpoint.
        line = journal_line("iteration", asdict(replace(record, next_plan=None, explorer_state=None)))
        with self.database.writing() as connection:
            self._require(connection, record.run_id)
            write_iteration(connection, record)
            self._journal(record.run_id).append(line)

    def commit_evaluation(self, record: EvaluationRecord) -> None:
        """Write an evaluation's rows in one transaction; writing the same again changes nothing."""
        line = journal_line("evaluation", asdict(record))
        with self.database.writing() as connection:
            self._require(connection, record.run_id)
            write_evaluation(connection, record)
            self._journal(record.run_id).append(line)

    def add_event(self, run_id: str, kind: str, message: str) -> None:
        """Note something a person should see beside the figures (a resume, a preemption, a warning).

        Args:
            run_id: the run.
            kind: of event, such as `staleness`.
            message: for people.
        """
        with self.database.writing() as connection:
            self._require(connection, run_id)
            happened_at = now()
            ((event_id,),) = connection.execute(
                "INSERT INTO events SELECT ?, 1 + coalesce(max(event_id), 0), ?, ?, ? "
                "FROM events WHERE run_id = ? RETURNING event_id",
                [run_id, happened_at, kind, message, run_id],
            ).fetchall()
            self._note(
                run_id, "event",
                {"event_id": event_id, "happened_at": happened_at, "event": kind, "message": message},
            )  # fmt: skip

    def discard_after(self, run_id: str, iteration: int) -> None:
        """Drop iterations and evaluations above `iteration`; a resumed run does them again.

        Their device time stays on the bill, as state `lost`.
        """
        with self.database.writing() as connection:
            self._require(connection, run_id)
            discard_iterations(connection, run_id, iteration)
            self._note(run_id, "discard", {"after": iteration})

    def reconcile(self, reason: str = "") -> list[str]:
        """Mark as `interrupted` the runs of this machine whose process is gone (kill -9, power).

        Args:
            reason: what ended the process, where that is known.

        Returns:
            Identifiers of the runs so marked.
        """
        gone = [row for row in self.runs() if row.status == "running" and not run_is_alive(row)]
        if not gone:
            return []
        marked: list[str] = []
        with self.database.writing() as connection:
            for row in gone:
                ended = f"its process {row.pid} ended without a word"
                if self._interrupt(connection, row, f"{ended}: {reason}" if reason else ended):
                    marked.append(row.run_id)
        return marked

    def run(self, run_id: str) -> RunRow:
        """One run.

        Raises:
            RunNotFoundError: there is none of that identifier; the message names near ones.
        """
        with self.database.reading() as connection:
            rows = run_rows(connection, "WHERE run_id = ?", [run_id])
            if not rows:
                raise _not_found(connection, self.home, run_id)
        return rows[0]

    def runs(self) -> list[RunRow]:
        """All runs, newest first."""
        with self.database.reading() as connection:
            return run_rows(connection, "ORDER BY created_at DESC, run_id DESC", [])

    def back_up(self) -> None:
        """Keep a copy of the database, for `spotlight rebuild`; the oldest copies go.

        Raises:
            DatabaseDamagedError: the database is damaged.
        """
        back_up(self.home, self.database.wait_s)

    def _journal(self, run_id: str) -> Journal:
        return Journal(self.home.journal(run_id))

    def _note(self, run_id: str, kind: EntryKind, values: Mapping[str, Any]) -> None:
        """Write a line of the run's journal; inside the transaction, whose lock it needs."""
        self._journal(run_id).append(journal_line(kind, values))

    def _note_run(self, connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
        cursor = connection.execute("SELECT * FROM runs WHERE run_id = ?", [run_id])
        names = [column[0] for column in cursor.description or []]
        (cells,) = cursor.fetchall()
        self._note(run_id, "run", dict(zip(names, cells, strict=True)))

    def _interrupt(self, connection: duckdb.DuckDBPyConnection, row: RunRow, error: str) -> bool:
        """Mark a running run as interrupted, unless another process works on it than when it was read."""
        changed = connection.execute(
            "UPDATE runs SET status = 'interrupted', ended_at = ?, error = ? "
            "WHERE run_id = ? AND status = 'running' AND host = ? AND pid = ? "
            "AND process_started_at IS NOT DISTINCT FROM ? RETURNING run_id",
            [now(), error, row.run_id, row.host, row.pid, row.process_started_at],
        ).fetchall()
        if changed:
            self._note_run(connection, row.run_id)
        return bool(changed)

    def _require(self, connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
        if not connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [run_id]).fetchone():
            raise _not_found(connection, self.home, run_id)

    def _update(
        self, connection: duckdb.DuckDBPyConnection, run_id: str, assignments: str, values: list[Any]
    ) -> None:
        self._require(connection, run_id)
        connection.execute(f"UPDATE runs SET {assignments} WHERE run_id = ?", [*values, run_id])
        self._note_run(connection, run_id)


def check_resumable(row: RunRow, pid: int | None = None) -> None:
    """Refuse to go on with a run that is finished, or that another process works on.

    Args:
        row: the run.
        pid: the process of this machine that may have the run already; None where none may.

    Raises:
        ConfigurationError: saying which, and what to do.
    """
    refuse_simulated(row)
    if row.status == "finished":
        raise ConfigurationError(
            f"run {row.run_id!r} is finished after {row.last_iteration} iterations; start a new one with "
            "`spotlight train`"
        )
    host = socket.gethostname()
    if row.status != "running" or (row.host == host and row.pid == pid and run_is_alive(row)):
        return
    message = (
        f"run {row.run_id!r} is going on in process {row.pid} of {row.host}; wait for it or end that process "
        "first"
    )
    if row.host != host:
        message += (
            f", or, if that machine is gone or was renamed to {host}, take the run over with "
            f"`spotlight resume {row.run_id} --take-over`"
        )
    raise ConfigurationError(message)


def refuse_simulated(row: RunRow) -> None:
    """Refuse to take a run for one that was done.

    Raises:
        ConfigurationError: it was simulated.
    """
    if SIMULATED in row.environment:
        raise ConfigurationError(
            f"run {row.run_id!r} was simulated by `spotlight what-if`, and nothing of it was done; name a "
            "recorded one"
        )


def run_rows(connection: duckdb.DuckDBPyConnection, clause: str, values: list[str]) -> list[RunRow]:
    """The rows of `runs` (called `r`) that a clause of SQL with its values selects.

    Args:
        connection: open connection to the database.
        clause: SQL that follows `FROM runs r`.
        values: of its parameters.
    """
    cursor = connection.execute(f"SELECT {_RUN_COLUMNS} FROM runs r {clause}", values)
    names = [column[0] for column in cursor.description or []]
    rows: list[RunRow] = []
    for cells in cursor.fetchall():
        row: dict[str, Any] = dict(zip(names, cells, strict=True))
        row["environment"] = json.loads(row["environment"])
        row["summary"] = json.loads(row["summary"])
        rows.append(RunRow(**row))
    return rows


def _not_found(connection: duckdb.DuckDBPyConnection, home: Home, run_id: str) -> RunNotFoundError:
    if run_id in home.run_folders():
        return RunNotFoundError(
            f"the database {home.database} does not know run {run_id!r}, whose checkpoints are there; "
            f"`spotlight rebuild` makes its rows again, `spotlight resume {run_id}` does so and goes on"
        )
    rows = connection.execute("SELECT run_id FROM runs ORDER BY created_at DESC").fetchall()
    known = [known_id for (known_id,) in rows]
    if not known:
        return RunNotFoundError(
            f"no run {quoted(run_id)}: there are none yet; start one with `spotlight train`"
        )
    near = difflib.get_close_matches(run_id, known, n=3)
    if near:
        return RunNotFoundError(f"no run {quoted(run_id)}; did you mean {', '.join(near)}?")
    return RunNotFoundError(f"no run {quoted(run_id)}; the latest are {', '.join(known[:5])}")


def _process_start(pid: int) -> float | None:
    """When the process began, in seconds since the boot; None where there is no such process."""
    try:
        return process_start_s(pid)
    except psutil.Error:
        return None
