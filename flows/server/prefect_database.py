"""The database of our Prefect server: parallel calls wait for each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class _WriteLockFirst(AioSqliteConfiguration):
    """Transactions of which each takes SQLite's write lock as it begins, and waits for it.

    Prefect begins most as readers. Where such a transaction comes to write after another one has committed,
    what it has read is out of date, and SQLite refuses at once with "database is locked", however long
    it may wait: two runs started at the same time were answered with 503.
    """

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def take_write_lock_first() -> None:
    """In the server's process, before its application is made: let its transactions wait for each other."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    MODELS_DEPENDENCIES["database_config"] = _WriteLockFirst(connection_url=url)
