"""Recovery of a run to be resumed: damaged files are moved aside, the mirror's are fetched."""

from __future__ import annotations

import os

from flows.progress import reporter
from flows.run_identity import check_run_id
from storage.config.run_config import MIRROR_VARIABLE
from storage.home import Home
from storage.record.mirror import fetch_from_mirror
from storage.record.run_store import RunRow, RunStore


def run_to_resume(home: Home, run_id: str) -> RunRow:
    """Return the run to be resumed; move damaged files of its record aside.

    Args:
        home: home that holds the run.
        run_id: the run.

    Raises:
        RunNotFoundError: the run does not exist.
    """
    store = RunStore(home)
    store.reconcile()
    row = store.run(run_id)
    if row.status != "running":
        for path in store.folder(run_id).set_aside_damaged():
            message = f"{path} is damaged and was moved aside; the run's pages lack its rows"
            reporter().note(f"warning: {message}")
            store.add_event(run_id, "damaged", message)
    return row


def fetch_where_unknown(home: Home, run_id: str) -> None:
    """Fetch a run's newest checkpoint from the mirror that the environment names, if there is none here.

    Args:
        home: home in which the run will continue.
        run_id: the run.

    Raises:
        ConfigurationError: the identifier cannot name a folder.
        CheckpointError: the mirror cannot be read, or has only damaged checkpoints of the run.
    """
    address = os.environ.get(MIRROR_VARIABLE, "")
    if not address:
        return
    check_run_id(run_id)
    iteration = fetch_from_mirror(address, home, run_id)
    if iteration is not None:
        reporter().note(f"fetched the checkpoint of iteration {iteration} of run {run_id} from {address}")
