"""MLflow's tables in a new home: a copy, where the installation has kept one."""

from __future__ import annotations

import logging
from pathlib import Path

from storage.empty_database import kept_database, provide_database

OF_A_HOME = ("experiments",)
"""MLflow's own experiment has a folder by where it was made; MLflow makes it where it is missing."""


def provide_tables(database: Path) -> None:
    """Provide MLflow's store where a home has none.

    Args:
        database: SQLite's file, in a folder that is there.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)  # 40 lines for a new store
    # It prints the traceback of errors that it raises, too; the thread of the reader puts each in a line.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    provide_database(database, kept_database("mlflow"), lambda: make_tables(database), OF_A_HOME)


def make_tables(database: Path) -> None:
    """Have MLflow make its tables, which takes seconds."""
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments(max_results=1)
