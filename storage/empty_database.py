"""Databases with other projects' tables for a new home: copies of databases that were made once.

The migrations of an empty database take seconds and end in the same tables for every home. The first database
made is kept with the installation, under its maker's version, and copied from then on.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

_LOGS = ("-wal", "-shm", "-journal")


def kept_database(package: str) -> Path:
    """Return the path of this installation's empty database for a package; it may not exist yet."""
    return Path(sys.prefix) / "share" / "spotlight" / f"{package}-{version(package)}.db"


def provide_database(
    database: Path, kept: Path, migrate: Callable[[], None], of_a_home: Sequence[str] = ()
) -> None:
    """Provide an empty database if a home has none; several processes may do so at once.

    Args:
        database: the home's database; left alone if it exists.
        kept: the installation's database; made if it is missing or damaged and its folder can be written.
        migrate: makes `database`, which takes seconds; leaves a complete one unchanged.
        of_a_home: tables whose rows belong to one home only: they are kept empty.
    """
    if database.exists():
        return
    address = f"{kept.absolute().as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as connection:
        versions = connection.execute("SELECT count(*) FROM alembic_version").fetchone()
        if versions == (1,) and _copied(kept, database):
            return
    migrate()
    with suppress(OSError, sqlite3.Error):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f"{kept.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("VACUUM INTO ?", [str(part)])
        with closing(sqlite3.connect(part)) as connection, connection:
            for table in of_a_home:
                connection.execute(f'DELETE FROM "{table}"')
        part.replace(kept)


def _copied(kept: Path, database: Path) -> bool:
    """Copy, unless another process was first; return False if there is no database afterwards."""
    if any(database.with_name(database.name + log).exists() for log in _LOGS):
        # Another process made the database just now; or it was deleted: SQLite would replay them into a copy.
        return database.exists()
    with tempfile.NamedTemporaryFile(dir=database.parent, prefix=f"{database.name}.") as part:
        shutil.copyfile(kept, part.name)
        try:
            os.link(part.name, database)  # never replaces an existing file
        except FileExistsError:
            return True
        except OSError:  # a file system without links
            return False
    return True
