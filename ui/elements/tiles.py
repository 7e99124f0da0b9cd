"""Tiles: figures in a row, all of the same size."""

from __future__ import annotations

from streamlit.delta_generator import DeltaGenerator

TILE_PX = 189
"""Width of a tile: six in a row of a window 1,400 wide; `ui/server/narrow.css` sets two in a narrow one's."""


def show_tile(
    row: DeltaGenerator,
    title: str,
    value: str,
    below: str | None,
    meaning: str | None = None,
) -> None:
    """Show a figure as a tile; all tiles of a row have the same width and height.

    Args:
        row: horizontal container of the tile.
        title: name of the figure.
        value: figure as text; `-` for none.
        below: second figure in small type; None for none.
        meaning: text of the question mark beside the title; None leaves it out.
    """
    row.metric(
        title, value, below, delta_color="off", delta_arrow="off", border=True, width=TILE_PX,
        height="stretch", help=meaning,
    )  # fmt: skip
