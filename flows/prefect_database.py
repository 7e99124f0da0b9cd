"""The database of our Prefect server: parallel calls wait for each other, and it stays small."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from flows.prefect_pruning import keep_small


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


def keep_in_order() -> None:
    """In the server's process, before its application is made, whose database is a SQLite file."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    MODELS_DEPENDENCIES["database_config"] = _WriteLockFirst(connection_url=url)
    keep_small(Path(make_url(url).database or ""))
