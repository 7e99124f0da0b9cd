"""What whole runs left in their record and in their last checkpoint; how a kill leaves one."""

from __future__ import annotations

import shutil
from typing import Any

from storage.home import Home
from storage.record.checkpoints import Checkpoint, CheckpointStore
from storage.record.run_store import RunStore


def rows(home: Home, query: str, *values: Any) -> list[Any]:
    """The answer of the record."""
    with RunStore(home).reading() as connection:
        return connection.execute(query, list(values)).fetchall()


def metrics(home: Home, run_id: str, name: str) -> dict[int, float]:
    """Iteration -> figure."""
    query = "SELECT iteration, value FROM iteration_metrics WHERE run_id = ? AND name = ?"
    return dict(rows(home, query, run_id, name))


def events(home: Home, run_id: str) -> list[tuple[str, str]]:
    """Kind and message of each event, in order."""
    return rows(home, "SELECT kind, message FROM events WHERE run_id = ? ORDER BY event_id", run_id)


def last_checkpoint(home: Home, run_id: str) -> Checkpoint:
    """The newest checkpoint of a run."""
    checkpoint = CheckpointStore(home.run(run_id)).load_latest()
    assert checkpoint is not None
    return checkpoint


def cut_off(home: Home, run_id: str, after: int) -> None:
    """Leave a finished run as a kill does after the checkpoint of an iteration."""
    for folder in home.run(run_id).glob("iteration-*"):
        if int(folder.name.removeprefix("iteration-")) > after:
            shutil.rmtree(folder)
    store = RunStore(home)
    store.discard_after(run_id, after)
    store.set_status(run_id, "interrupted")
