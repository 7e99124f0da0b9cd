"""`spotlight logs`: prints a run's log, and follows it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated

import typer

from flows.cli.run_names import RunName
from storage.errors import RunNotFoundError
from storage.home import Home
from storage.record.run_status import (
    LIVE,
    LogLines,
    Message,
    activity_of,
    lines_after,
    read_activity,
    shown_status,
)
from storage.record.run_store import RunStore
from storage.text import one_line

_POLL_S = 0.5


def logs(
    run_id: RunName,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new lines until the run has ended; Ctrl-C leaves it."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, as it is recorded.")
    ] = False,
) -> None:
    """Print a run's log: phases, messages, and events such as notices, losses and alarms."""
    home = Home.from_environment()
    store, log, position = RunStore(home), LogLines(), 0
    status = _status(store, run_id)
    with suppress(KeyboardInterrupt):
        while True:
            lines, position = lines_after(home, run_id, position)
            for line in lines:
                message = log.message(line)
                if as_json:
                    typer.echo(json.dumps(line))
                elif message is not None:
                    typer.echo(_printed(message))
            if not follow or status not in LIVE:
                break
            time.sleep(_POLL_S)
            try:
                status = _status(store, run_id)  # before the lines: those of its end are printed, too
            except RunNotFoundError:
                status = "refused"  # its process is gone before it had a row
    if follow and not as_json:
        typer.echo(f"run {run_id} is {status}")


def _printed(message: Message) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.at))
    kind = f"{message.kind}: " if message.kind else ""
    return f"{at}  {one_line(kind + message.text)}"


def _status(store: RunStore, run_id: str) -> str:
    try:
        row = store.run(run_id)
    except RunNotFoundError:
        if read_activity(store.home, run_id, 0).is_alive:
            return "starting"  # it has a log and no row yet
        raise
    return shown_status(row, activity_of(store.home, row, 0))
