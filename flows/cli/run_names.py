"""Names of runs on the command line: an identifier, its beginning, or `last`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.run_identity import LAST, find_run
from storage.errors import SpotlightError
from storage.home import Home


def run_names(incomplete: str) -> list[str]:
    """Return the runs whose identifiers begin with `incomplete`, for the shell's completion."""
    try:
        known = Home.from_environment().run_ids()
    except SpotlightError:
        return []
    return [name for name in [LAST, *known] if name.startswith(incomplete)]


def named_run(text: str | None) -> str | None:
    """Return the identifier of the named run; None and other texts stay (`flows.run_identity.find_run`)."""
    return None if text is None else find_run(Home.from_environment(), text)


def _all_named(texts: list[str]) -> list[str]:
    return [find_run(Home.from_environment(), text) for text in texts]


_HELP = "A run: its identifier, the beginning of it, or `last`."

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help=_HELP, callback=named_run, autocompletion=run_names)
]
OptionalRunName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help=f"{_HELP} Without it the untouched model of the preset.",
        callback=named_run,
        autocompletion=run_names,
    ),
]
RunNames = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="A recorded run, or several of one fleet.",
        callback=_all_named,
        autocompletion=run_names,
    ),
]
