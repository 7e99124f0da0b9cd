"""The SQLite database of a home's Prefect server: its tables, and calls that wait for each other.

`make install` makes the tables once for the installation, so that the first run of a new home does not wait:

    python -m flows.server.database
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from storage.empty_database import kept_database, provide_database


def provide_prefect_database(database: Path) -> None:
    """Provide an empty database if a home has none; Prefect's settings name the same one."""
    provide_database(database, kept_database("prefect"), _migrate_with_prefect)


def take_write_lock_first() -> None:
    """Make transactions of the server's process wait for each other; call before its application is made.

    Prefect begins most as readers. If such a transaction writes after another one has committed, its reads
    are out of date, and SQLite fails at once with "database is locked", whatever its timeout: two runs
    started at the same time got a 503.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import MODELS_DEPENDENCIES
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

    class WriteLockFirst(AioSqliteConfiguration):
        @asynccontextmanager
        async def begin_transaction(
            self, session: AsyncSession, with_for_update: bool = False
        ) -> AsyncGenerator[AsyncSessionTransaction, None]:
            async with super().begin_transaction(session, with_for_update=True) as transaction:
                yield transaction

    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    MODELS_DEPENDENCIES["database_config"] = WriteLockFirst(connection_url=url)


def main() -> None:
    """Make the installation's databases if missing."""
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
