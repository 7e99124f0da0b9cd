"""Rows that the database lost: made again for `spotlight rebuild`, and for a run that is resumed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flows.progress import reporter
from flows.run_identity import check_run_id
from storage.checkpoint_mirror import fetch_from_mirror
from storage.config.run_config import MIRROR_VARIABLE
from storage.database.run_store import RunRow, RunStore
from storage.errors import DatabaseDamagedError, RunNotFoundError
from storage.home import Home


def run_to_resume(home: Home, run_id: str, take_over: bool = False) -> RunRow:
    """The row of a run that is to be resumed, made again first where the database lost it.

    Args:
        home: where the run is.
        run_id: the run.
        take_over: also one that seems to go on elsewhere.

    Raises:
        RunNotFoundError: there is no such run, and nothing is left of one.
        ConfigurationError: the database is damaged, and a run goes on beside it.
    """
    store = RunStore(home)
    try:
        store.database.check()
        store.reconcile()
        return store.run(run_id)
    except DatabaseDamagedError as error:
        reporter().note(f"warning: {error}")
        rebuild_and_report(home, None, take_over)
    except RunNotFoundError as error:
        if run_id not in home.run_folders():
            raise
        reporter().note(f"warning: {error}")
        rebuild_and_report(home, run_id, take_over)
    return store.run(run_id)


def fetch_where_unknown(home: Home, run_id: str) -> None:
    """Fetch a run's newest checkpoint from the place that the environment names, where there is none here.

    Args:
        home: where the run is to go on.
        run_id: the run.

    Raises:
        ConfigurationError: the identifier cannot name a folder.
        CheckpointError: the place cannot be read, or has only damaged checkpoints of the run.
    """
    address = os.environ.get(MIRROR_VARIABLE, "")
    if not address:
        return
    check_run_id(run_id)
    iteration = fetch_from_mirror(address, home, run_id)
    if iteration is not None:
        reporter().note(f"fetched the checkpoint of iteration {iteration} of run {run_id} from {address}")


def rebuild_and_report(home: Home, only: str | None, take_over: bool) -> None:
    """Make rows again, and report what was done and what could not be.

    Args:
        home: whose database lost them.
        only: the one run to make again; None makes all.
        take_over: also those that are marked as running on another machine.
    """
    from storage.database.rebuilding import rebuild

    done = rebuild(home, only, take_over)
    note = reporter().note
    if done.kept_at is not None:
        note(f"the damaged database is kept as {done.kept_at}")
    if done.backup_made_at is not None:
        note(f"began from the backup of {_moment(done.backup_made_at)}")
    if not done.runs and done.kept_at is None:
        note(f"{home.database} is sound and knows every run that has checkpoints; nothing was changed")
        return
    for run_id, iterations in done.runs.items():
        note(f"made again: run {run_id} (iterations: {iterations})")
    for loss in done.losses:
        note(f"not recovered: {loss}")


def back_up(store: RunStore) -> None:
    """Keep a copy of the database once a run has ended; where that fails, say so and go on."""
    from storage.errors import StorageError

    try:
        store.back_up()
    except StorageError as error:
        reporter().note(f"warning: {error}")


def backups_in_words(folder: Path) -> str:
    """How many copies of the database there are, and when the newest was made."""
    made = [path.stat().st_mtime for path in folder.glob("iteration-*")]
    return f"backups: {len(made)}, the newest of {_moment(max(made))}" if made else "no backup yet"


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
