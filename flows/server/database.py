"""The tables of the SQLite database of a home's Prefect server.

`make install` makes the tables once for the installation, so that the first run of a new home does not wait:

    python -m flows.server.database
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from storage.empty_database import kept_database, provide_database


def provide_prefect_database(database: Path) -> None:
    """Provide an empty database if a home has none; Prefect's settings name the same one."""
    provide_database(database, kept_database("prefect"), _migrate_with_prefect)


def main() -> None:
    """Make the installation's databases, where it has none."""
    from storage.readers.mlflow_reader import provide_tables

    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = folder
        database = Path(folder) / "prefect.db"
        os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{database}"
        provide_prefect_database(database)
        provide_tables(Path(folder) / "mlflow.db")


def _migrate_with_prefect() -> None:
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


if __name__ == "__main__":
    main()
