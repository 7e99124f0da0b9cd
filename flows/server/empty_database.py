"""A new home's Prefect database: a copy of one that Prefect's migrations have made once.

The migrations of an empty database take seconds and end in the same tables for every home. The first database
that is made is kept with the installation, under Prefect's version, and copied from then on. `make install`
makes it ahead:

    python -m flows.server.empty_database
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path


def kept_database() -> Path:
    """Where this installation keeps the empty database; there may be none yet."""
    return Path(sys.prefix) / "share" / "spotlight" / f"prefect-{version('prefect')}.db"


def provide_database(database: Path, kept: Path, migrate: Callable[[], None]) -> None:
    """Provide an empty database where a home has none.

    Args:
        database: the home's; left alone if it is there.
        kept: the installation's; made where it is missing or damaged, if its folder can be written.
        migrate: makes `database`, which takes seconds.
    """
    if database.exists():
        return
    if _is_migrated(kept):
        part = database.with_name(f"{database.name}.part")
        shutil.copyfile(kept, part)
        part.chmod(0o600)
        for log in ("-wal", "-shm"):  # of a database that was deleted: SQLite would replay them into this one
            database.with_name(database.name + log).unlink(missing_ok=True)
        part.replace(database)
        return
    migrate()
    with suppress(OSError, sqlite3.Error):
        _keep(database, kept)


def migrate_with_prefect() -> None:
    """Make the database that Prefect's settings name, with its tables."""
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


def main() -> None:
    """Make the installation's, if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = folder
        database = Path(folder) / "prefect.db"
        os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{database}"
        provide_database(database, kept_database(), migrate_with_prefect)


def _is_migrated(database: Path) -> bool:
    if not database.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
    except sqlite3.Error:
        return False


def _keep(database: Path, kept: Path) -> None:
    """Copy what is in the log beside the file too; several processes may do so at once."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_name(f"{kept.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", [str(part)])
    part.replace(kept)


if __name__ == "__main__":
    main()
