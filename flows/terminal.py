"""The console for people: it prints users' texts unchanged."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console without markup: brackets and colons of a prompt, a tag or a path are printed as is.

    Args:
        stderr: True to write to standard error.
        width: width in characters; None for the terminal's.
    """
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
