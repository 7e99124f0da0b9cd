"""The console that people read: it prints the texts of users as they are."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console on which brackets and colons of a prompt, a tag or a path mean nothing.

    Args:
        stderr: whether it writes to the standard error.
        width: in characters; None for the terminal's.
    """
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
