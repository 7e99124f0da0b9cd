"""`spotlight rebuild`: the database's rows made again."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.recovery import rebuild_and_report
from storage.home import Home


def rebuild(
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Also where a run is marked as running on another machine. Only where no process works on "
            "it any more.",
        ),
    ] = False,
) -> None:
    """Make the database's rows again after damage or loss, from backups, journals and checkpoints."""
    rebuild_and_report(Home.from_environment().ensure(), None, take_over)
