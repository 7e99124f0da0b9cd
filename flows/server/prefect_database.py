"""The database of our Prefect server, with parallel calls that wait for each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction


class _WriteLockFirst(AioSqliteConfiguration):
    """A configuration whose transactions each take SQLite's write lock at their start, and wait for it.

    Prefect begins most as readers. If such a transaction writes after another one has committed, its reads
    are out of date, and SQLite fails at once with "database is locked", whatever its timeout: two runs
    started at the same time got a 503.
    """

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def take_write_lock_first() -> None:
    """Make transactions of the server's process wait for each other; call before its application is made."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    MODELS_DEPENDENCIES["database_config"] = _WriteLockFirst(connection_url=url)
