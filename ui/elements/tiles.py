"""Tiles: figures in a row, all of one size."""

from __future__ import annotations

from streamlit.delta_generator import DeltaGenerator

from ui.elements.formatting import MODELLED_BADGE

TILE_PX = 189
"""Width of a tile: six in a row of a window 1,400 wide; `ui/server/narrow.css` sets two in a narrow one's."""


def show_tile(
    row: DeltaGenerator,
    title: str,
    value: str,
    below: str | None,
    meaning: str | None = None,
    modelled: bool = False,
) -> None:
    """A figure of a row of tiles that are all as wide and as high as each other.

    Args:
        row: where to; a horizontal container.
        title: what it is.
        value: the figure as text; `-` where there is none.
        below: a second figure in small; None where there is none.
        meaning: what the question mark beside the title says; None leaves it out.
        modelled: whether the tile's dollars are those of a model; a badge says so.
    """
    shown = f"{title} {MODELLED_BADGE}" if modelled else title
    row.metric(
        shown, value, below, delta_color="off", delta_arrow="off", border=True, width=TILE_PX,
        height="stretch", help=meaning,
    )  # fmt: skip
