"""`spotlight stop`: ends a run in progress, as Ctrl-C in its terminal does."""

from __future__ import annotations

import os
import signal
import socket
import time

import typer

from flows.cli.run_names import RunName
from flows.progress import reporter
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_store import RunRow, RunStore

_WAIT_S = 180.0


def stop(run_id: RunName) -> None:
    """End a run of this machine that goes on; what it has committed stays, and it can be resumed."""
    store = RunStore(Home.from_environment())
    store.reconcile()
    row = store.run(run_id)
    if row.status != "running":
        raise ConfigurationError(f"run {run_id!r} is {row.status}: there is nothing to stop")
    if row.host != socket.gethostname():
        raise ConfigurationError(
            f"run {run_id!r} goes on in process {row.pid} of {row.host}; stop it on that machine"
        )
    try:
        os.kill(row.pid, signal.SIGTERM)
    except PermissionError as error:
        raise ConfigurationError(
            f"process {row.pid} of run {run_id!r} belongs to another user; stop it as that user"
        ) from error
    except ProcessLookupError:
        pass  # it has just ended
    reporter().note(f"stopping run {run_id}, process {row.pid}")
    ended = _wait(store, run_id)
    go_on = "" if ended.status == "finished" else f"; go on with `spotlight resume {run_id}`"
    typer.echo(f"run {run_id} is {ended.status} after iteration {ended.last_iteration or 0}{go_on}")


def _wait(store: RunStore, run_id: str) -> RunRow:
    """Wait until the run's process has noted its end, or is gone."""
    until = time.monotonic() + _WAIT_S
    while (row := store.run(run_id)).status == "running" and time.monotonic() < until:
        time.sleep(0.1)
        store.reconcile()
    if row.status != "running":
        return row
    raise ConfigurationError(
        f"process {row.pid} of run {run_id!r} has not ended in {_WAIT_S:g} s; look at its log, or end it by "
        f"`kill -9 {row.pid}`: what is committed stays"
    )
