"""Connections to DuckDB that several processes can share.

DuckDB lets one process at a time hold a writing connection, and no other process may even
read meanwhile. So no process keeps a connection: a writer opens, commits one batched transaction and
closes (some 15 ms); a reader opens read-only and closes; a process that finds the file locked tries again.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import psutil

from storage.database.schema import (
    SCHEMA_VERSION,
    add_empty_tables,
    create_tables,
    stored_version,
    upgrade_tables,
)
from storage.errors import DatabaseDamagedError, StorageError
from storage.home import close_to_others

LOCK_WAIT_S = 10.0
"""How long a connection is tried for before it counts as stuck."""

_RETRY_PAUSE_S = (0.005, 0.030)
"""Bounds of the random pause between two tries; random so that two waiters fall out of step."""

# One thread more is a thread started at each open, and our batches are small. The extensions are
# off because a machine without a network would wait for them; other files, because a database made
# elsewhere may hold views that read them in place of our tables.
_SETTINGS = {
    "threads": 1,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}

_MARKS_OF_DAMAGE = (
    "Corrupt database file",
    "not a valid DuckDB database",
    "Could not read enough bytes",
    "Is a directory",
    "has been invalidated",
)

# Within a process DuckDB shares one open database among connections, and fails in several ways when
# one is opened while another closes: the threads of a process take turns. One thread may nest.
_turn = threading.RLock()


class Database:
    """Short-lived connections to one DuckDB file.

    Args:
        path: the file; made with its tables by the first write.
        wait_s: how long to wait for a lock.
    """

    def __init__(self, path: Path, wait_s: float = LOCK_WAIT_S) -> None:
        self.path = path
        self.wait_s = wait_s

    @contextmanager
    def writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection inside one transaction: committed at the end, rolled back on an error.

        Tables of an earlier version are brought to the present one in the same transaction.

        Raises:
            DatabaseDamagedError: the file is damaged.
            StorageError: the file stayed locked, has a later version's tables, or DuckDB refused.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._connected(read_only=False) as connection:
            version = self._version(connection)
            connection.execute("BEGIN TRANSACTION")
            if version is None:
                close_to_others(self.path)
                create_tables(connection)
            elif version < SCHEMA_VERSION:
                upgrade_tables(connection, version)
            yield connection
            connection.execute("COMMIT")  # where an error keeps us from it, closing rolls back

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection; where nothing was ever written, one to empty tables.

        A file of an earlier version is read as it is, with the tables that it lacks empty.

        Raises:
            DatabaseDamagedError: the file is damaged.
            StorageError: the file stayed locked, has a later version's tables, or DuckDB refused.
        """
        if self.path.exists():
            with self._connected(read_only=True) as connection:
                version = self._version(connection)
                if version is not None:
                    add_empty_tables(connection, version)
                    yield connection
                    return
        with duckdb.connect(":memory:", config=_SETTINGS) as empty:
            create_tables(empty)
            yield empty

    def check(self) -> None:
        """Read all of the file, which verifies its checksums; where there is none, do nothing.

        Raises:
            DatabaseDamagedError: it is damaged.
            StorageError: the file stayed locked, or has a later version's tables.
        """
        if self.path.exists():
            with self.reading() as connection:
                _read_all(connection)

    @contextmanager
    def held(self) -> Iterator[Path]:
        """The file, complete and read through, while no other process may open it: to be copied.

        Raises:
            DatabaseDamagedError: it is damaged.
            StorageError: the file stayed locked, or has a later version's tables.
        """
        with self._connected(read_only=False) as connection:
            self._version(connection)
            _read_all(connection)
            connection.execute("CHECKPOINT")  # what a killed writer left in the log goes into the file
            yield self.path

    @contextmanager
    def _connected(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        if not _turn.acquire(timeout=self.wait_s):
            raise StorageError(
                f"another thread of this process kept {self.path} for {self.wait_s:g} s; try again"
            )
        try:
            connection = self._connect(read_only=read_only)
            try:
                yield connection
            except duckdb.Error as error:
                if _is_damage(error):
                    raise self._damaged(error) from error
                raise StorageError(f"DuckDB refused a statement on {self.path}: {error}") from error
            finally:
                connection.close()
        finally:
            _turn.release()

    def _damaged(self, error: duckdb.Error) -> DatabaseDamagedError:
        return DatabaseDamagedError(
            f"the database {self.path} is damaged ({_first_line(error)}); `spotlight rebuild` makes its rows "
            "again from backups, journals and checkpoints, and keeps the damaged file"
        )

    def _version(self, connection: duckdb.DuckDBPyConnection) -> int | None:
        """The version of the file's tables; None where there are none yet."""
        version = stored_version(connection)
        if version is not None and not 1 <= version <= SCHEMA_VERSION:
            raise StorageError(
                f"{self.path} has tables of version {version}, this code needs {SCHEMA_VERSION}; move the "
                "file away (runs begin anew in a fresh one) or use the code that wrote it"
            )
        return version

    def _connect(self, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        give_up_at = time.monotonic() + self.wait_s
        while True:
            try:
                connection = duckdb.connect(str(self.path), read_only=read_only, config=_SETTINGS)
                _hide_progress(connection)
                return connection
            except duckdb.Error as error:
                if _is_damage(error):
                    raise self._damaged(error) from error
                if not _is_locked(error):
                    raise StorageError(f"cannot open {self.path}: {_first_line(error)}") from error
                if time.monotonic() >= give_up_at:
                    raise StorageError(
                        f"{self.path} stayed locked for {self.wait_s:g} s by {_holder(error)}; "
                        "stop that process or wait for it, then try again"
                    ) from error
            time.sleep(random.uniform(*_RETRY_PAUSE_S))


def _hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Draw no progress bar: after two seconds it would land in the output, which ends with a line of JSON."""
    # A notebook without ipywidgets has none, and DuckDB then refuses any change of the setting.
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
        connection.execute("SET enable_progress_bar = false")


def _read_all(connection: duckdb.DuckDBPyConnection) -> None:
    tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
    for (table,) in tables:
        connection.execute(f'SELECT bit_xor(hash(t)) FROM "{table}" t').fetchall()


def _is_damage(error: duckdb.Error) -> bool:
    """Whether DuckDB found the file itself wrong; it has no type of its own for that."""
    return isinstance(error, (duckdb.SerializationException, duckdb.InternalException)) or any(
        mark in str(error) for mark in _MARKS_OF_DAMAGE
    )


def _first_line(error: duckdb.Error) -> str:
    return str(error).partition("\n")[0]


def _is_locked(error: duckdb.Error) -> bool:
    # The second text is what a thread gets that writes inside its own reading, or the other way round.
    return "Could not set lock" in str(error) or "different configuration" in str(error)


def _holder(error: duckdb.Error) -> str:
    found = re.search(r"PID (\d+)", str(error))
    if found is None:
        return "this process itself, which has it open in the other mode"
    pid = int(found.group(1))
    try:
        return f"process {pid} ({' '.join(psutil.Process(pid).cmdline())[:120]})"
    except psutil.Error:
        return f"process {pid}"
