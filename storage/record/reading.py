"""SQL over the records of runs: DuckDB in memory, with one view per table over the runs' files.

There is no lock: files of rows never change, and the files that count are listed once per connection, so that
all its queries see the same moment. A view is made when a query first names its table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from storage.errors import StorageError
from storage.home import Home
from storage.record.files import AS_DISCARDED, Listing, is_whole, read_json
from storage.record.run_folder import RUN_FILE, RunFolder
from storage.record.tables import COLUMNS, EVALUATION_COLUMNS

# One thread more is a thread started at each open, and our tables are small. The extensions are off because
# a machine without a network would wait for them.
_SETTINGS = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}

_SQL_TYPES = {
    pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR", pa.binary(): "BLOB",
}  # fmt: skip

DESCRIBED: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "run_id": "VARCHAR", "name": "VARCHAR", "status": "VARCHAR", "created_at": "DOUBLE",
        "ended_at": "DOUBLE", "host": "VARCHAR", "pid": "BIGINT", "process_started_at": "DOUBLE",
        "config": "VARCHAR", "environment": "VARCHAR", "summary": "VARCHAR", "error": "VARCHAR",
    },
    "run_notes": {
        "run_id": "VARCHAR", "tags": "VARCHAR", "note": "VARCHAR", "archived": "BOOLEAN",
        "changed_at": "DOUBLE",
    },
    "run_links": {"run_id": "VARCHAR", "place": "VARCHAR", "address": "VARCHAR", "noted_at": "DOUBLE"},
    "events": {
        "run_id": "VARCHAR", "event_id": "BIGINT", "happened_at": "DOUBLE", "kind": "VARCHAR",
        "message": "VARCHAR",
    },
    "separate_evaluations": {
        "evaluation_id": "VARCHAR", "run_id": "VARCHAR", "iteration": "INTEGER", "policy_version": "INTEGER",
        "started_at": "DOUBLE", "ended_at": "DOUBLE", "score": "DOUBLE", "exact": "DOUBLE",
        "images": "BIGINT", "folder": "VARCHAR", "config": "VARCHAR", "environment": "VARCHAR",
    },
    "reproductions": {
        "reproduction_id": "VARCHAR", "series": "VARCHAR", "how": "VARCHAR", "reference": "VARCHAR",
        "run_id": "VARCHAR", "started_at": "DOUBLE", "ended_at": "DOUBLE", "verdict": "VARCHAR",
        "message": "VARCHAR", "score_was": "DOUBLE", "score_is": "DOUBLE", "difference": "DOUBLE",
        "low": "DOUBLE", "high": "DOUBLE", "differences": "VARCHAR",
    },
}  # fmt: skip
"""Tables read from JSON files, with their columns; nested values are JSON text."""

EVALUATION_FILE = "evaluation.json"
"""The file of facts about an evaluation by `spotlight evaluate`, in its folder."""

COSTS = """
    SELECT run_id, phase, iteration, state, market, sum(ended_at - started_at) AS device_s,
        sum((ended_at - started_at) * usd_per_hour / 3600) AS usd
    FROM worker_states GROUP BY ALL
"""
"""The query that sums the device states of a phase."""

PROMPTS = "SELECT run_id, purpose, prompt_id, any_value(prompt) AS prompt FROM {rows} GROUP BY ALL"

_MOST_RUNS = 4096
"""Runs whose rows of `runs` a process keeps, about 5 kB each: a page reads all, and few have changed."""

_MOST_LISTS = 5
"""Number of listings after which files missing from the last one count as damaged."""

_NAMES = re.compile(r"\b(" + "|".join([*COLUMNS, *EVALUATION_COLUMNS, *DESCRIBED, "costs"]) + r")\b")


class RecordConnection:
    """A connection for SQL queries over the tables of some runs (None: all), as of its opening.

    Attributes:
        damaged: unreadable files, whose rows are missing.

    Raises:
        StorageError: the home is of an earlier layout.
    """

    def __init__(self, home: Home, run_ids: Sequence[str] | None) -> None:
        home.refuse_earlier_layout()
        self._home = home
        self._run_ids = run_ids
        self._made: set[str] = set()
        self.damaged: list[Path] = []
        self._folders = _run_folders(home, run_ids)
        self._listings: list[Listing] | None = None
        self._connection = duckdb.connect(":memory:", config=_SETTINGS)
        # The progress bar would land after two seconds in the output, which ends in a JSON line. A notebook
        # without ipywidgets has none, and DuckDB then refuses any change of the setting.
        if self._connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
            self._connection.execute("SET enable_progress_bar = false")
        plain = str(home.path).replace("'", "''")
        self._connection.execute(f"SET allowed_directories = ['{plain}', '{globbed(home.path)}']")
        self._connection.execute("SET enable_external_access = false")

    def execute(
        self, query: str, values: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Run a query; its result is read as from a DuckDB connection. StorageError if it is refused."""
        try:
            return self._answer(query, values)
        except duckdb.Error:
            # A folder may have been discarded or compacted since it was listed, or a file is damaged.
            self._list_again(query)
        try:
            return self._answer(query, values)
        except duckdb.Error as error:
            raise StorageError(f"DuckDB refused a query over {self._home.path}: {error}") from error

    def close(self) -> None:
        """Close the files."""
        self._connection.close()

    def _answer(self, query: str, values: Any) -> duckdb.DuckDBPyConnection:
        for table in dict.fromkeys(_NAMES.findall(query)):
            self._make(table)
        # A separate one for each query: a result not read to its end would block the next one.
        cursor = self._connection.cursor()
        # Complete before it is read: in a stream, a damaged file would be noticed too late to leave it out.
        cursor.execute(f"CREATE TEMP TABLE answer AS {query}", values)
        return cursor.execute("FROM answer")

    def _make(self, table: str) -> None:
        if table in self._made:
            return
        self._made.add(table)
        if table == "costs":
            self._make("worker_states")
            select = COSTS
        elif table in DESCRIBED:
            select, values = _described(self._home, table, self._folders)
            self._connection.execute(f"CREATE OR REPLACE TABLE {table} AS {select}", values)
            return
        else:
            select = self._rows(table)
        self._connection.execute(f"CREATE OR REPLACE VIEW {table} AS {select}")

    def _rows(self, table: str) -> str:
        columns = {**COLUMNS, **EVALUATION_COLUMNS}[table]
        empty = ", ".join(f"NULL::{_SQL_TYPES[kind]} AS {name}" for name, kind in columns.items())
        selects = [f"SELECT {empty} WHERE false"]  # gives columns that older files lack
        for discarded in (False, True):
            files = [globbed(path) for path in self._files(table, discarded) if path not in self.damaged]
            if files:
                selects.append(select_rows(files, columns, discarded))
        rows = " UNION ALL BY NAME ".join(selects)
        return PROMPTS.format(rows=f"({rows})") if table == "prompts" else rows

    def _files(self, table: str, discarded: bool) -> list[Path]:
        if table in COLUMNS:
            if self._listings is None:
                self._listings = [folder.listing() for folder in self._folders]
            return [path for each in self._listings for path in each.files(table, discarded=discarded)]
        folders = [] if discarded else evaluation_folders(self._home)
        return [path for folder in folders if (path := folder / f"{table}.parquet").exists()]

    def _list_again(self, query: str) -> None:
        """List the files that count now, without unreadable ones."""
        tables = dict.fromkeys([*self._made, *_NAMES.findall(query), "worker_states"])  # `costs` reads these
        self._made = set()
        for _ in range(_MOST_LISTS):
            self._folders, self._listings = _run_folders(self._home, self._run_ids), None
            paths = [
                path
                for table in tables
                for discarded in (False, True)
                for path in self._files(table, discarded)
            ]
            self.damaged = [path for path in paths if not is_whole(path)]
            if all(map(os.path.lexists, paths)):  # else files were renamed meanwhile
                return


def evaluation_folders(home: Home) -> list[Path]:
    """Return the folders of the evaluations by `spotlight evaluate`, in alphabetical order."""
    folders = home.evaluations.iterdir() if home.evaluations.is_dir() else ()
    return sorted(path for path in folders if path.is_dir() and not path.name.startswith((".", "_")))


def separate_evaluations(home: Home) -> list[dict[str, Any]]:
    """Return the facts of each evaluation by `spotlight evaluate`, without its images."""
    return [read_json(folder / EVALUATION_FILE) for folder in evaluation_folders(home)]


def _run_folders(home: Home, run_ids: Sequence[str] | None) -> list[RunFolder]:
    named = home.run_ids() if run_ids is None else dict.fromkeys(run_ids)  # a run named twice counts once
    found = []
    for folder in filter(lambda folder: folder.exists, map(RunFolder, map(home.run, named))):
        with suppress(StorageError):  # damaged: a query of `runs` reports it
            if folder.is_copy(_run_row(folder.path / RUN_FILE)):
                continue
        found.append(folder)
    return found


def globbed(path: Path) -> str:
    """Return a path for DuckDB's `read_...` functions, in which `*`, `?` and `[` would be patterns."""
    return re.sub(r"([*?[])", r"[\1]", str(path)).replace("'", "''")


def select_rows(files: Sequence[str], columns: Mapping[str, pa.DataType], discarded: bool = False) -> str:
    """Return a select of the rows of files; those of discarded iterations get the values they count as.

    Args:
        files: paths or patterns from `globbed`.
    """
    names = ", ".join(f"'{file}'" for file in files)
    replaced = ", ".join(f"'{value}' AS {name}" for name, value in AS_DISCARDED.items() if name in columns)
    chosen = f"* REPLACE ({replaced})" if discarded and replaced else "*"
    return f"SELECT {chosen} FROM read_parquet([{names}], union_by_name = true)"


def _described(home: Home, table: str, folders: Sequence[RunFolder]) -> tuple[str, list[list[Any]]]:
    """Return a select of the rows of a table of `DESCRIBED`, and its parameters: one list per column."""
    rows: Sequence[Mapping[str, Any]]
    if table == "runs":
        rows = [_run_row(folder.path / RUN_FILE) for folder in folders]
    elif table == "events":
        rows = [{"run_id": folder.run_id, **event} for folder in folders for event in folder.events()]
    elif table == "separate_evaluations":
        rows = separate_evaluations(home)
    elif table == "reproductions":
        rows = [read_json(path) for path in sorted(home.reproductions.glob("[!._]*.json"))]
    elif table == "run_notes":
        noted = {folder.run_id: folder.notes() for folder in folders}
        rows = [{"run_id": run_id, **notes["notes"]} for run_id, notes in noted.items() if "notes" in notes]
    else:
        rows = [
            {"run_id": folder.run_id, "place": place, **link}
            for folder in folders
            for place, link in folder.notes().get("links", {}).items()
        ]
    columns = DESCRIBED[table]
    # Whole columns: a row at a time is a hundred times slower. Not Arrow's arrays, which import pandas.
    cells = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in columns.items())
    return f"SELECT {cells}", [[_cell(row.get(name), kind) for row in rows] for name, kind in columns.items()]


def _cell(value: Any, kind: str) -> Any:
    nested = kind == "VARCHAR" and value is not None and not isinstance(value, str)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if nested else value


def _run_row(file: Path) -> Mapping[str, Any]:
    try:
        found = file.stat()
    except OSError:
        return read_json(file)  # its error says what is wrong
    return _run_cells(file, found.st_ino, found.st_mtime_ns, found.st_size)


@lru_cache(_MOST_RUNS)
def _run_cells(file: Path, *version: int) -> Mapping[str, Any]:
    """Return a run's row of `runs`; `version` tells its content from earlier ones, as each is a new file."""
    row = read_json(file)
    return {name: _cell(row.get(name), kind) for name, kind in DESCRIBED["runs"].items()}
