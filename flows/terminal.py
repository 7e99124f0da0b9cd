"""The console for people: it prints users' texts unchanged."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False, width: int | None = None, plain: bool = False) -> Console:
    """Return a console without markup: brackets and colons of a prompt, a tag or a path are printed as is.

    Args:
        stderr: True to write to standard error.
        width: width in characters; None for the terminal's.
        plain: True for text without colours, which rich does not show in a notebook by itself.
    """
    return Console(
        stderr=stderr,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        color_system=None if plain else "auto",
        force_jupyter=False if plain else None,
    )
