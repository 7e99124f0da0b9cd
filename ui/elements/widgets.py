"""Tiles of figures, all of the same size, and downloads of a page's figures as CSV and Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from storage.text import file_stem

TILE_PX = 189
"""Width of a tile: six in a row of a window 1,400 wide; `ui/server/narrow.css` sets two in a narrow one's."""


def show_tile(
    row: DeltaGenerator, title: str, value: str, below: str | None, meaning: str | None = None
) -> None:
    """Show a figure as a tile; all tiles of a row have the same width and height.

    Args:
        value: figure as text; `-` for none.
        below: second figure in small type; None for none.
        meaning: text of the question mark beside the title; None leaves it out.
    """
    row.metric(
        title, value, below, delta_color="off", delta_arrow="off", border=True, width=TILE_PX,
        height="stretch", help=meaning,
    )  # fmt: skip


Tile = tuple[str, str, str | None] | tuple[str, str, str | None, str]
"""The title, the value, the second figure and perhaps the meaning of a tile, as in `show_tile`."""


def show_tiles(*tiles: Tile, row: DeltaGenerator | None = None) -> None:
    """Show figures in a row, by default a new one; it wraps, where columns would cut the figures off."""
    row = row or st.container(horizontal=True)
    for title, value, below, *meaning in tiles:
        show_tile(row, title, value, below, *meaning)


def as_csv(frame: pd.DataFrame) -> bytes:
    """Return the frame with a header line, in UTF-8; pictures are left out."""
    return _without_pictures(frame).to_csv(index=False).encode()


def as_parquet(frame: pd.DataFrame) -> bytes:
    """Return the frame as a Parquet file; pictures are left out."""
    buffer = io.BytesIO()
    _without_pictures(frame).to_parquet(buffer, index=False)
    return buffer.getvalue()


_FORMATS = {"CSV": ("text/csv", as_csv), "Parquet": ("application/vnd.apache.parquet", as_parquet)}


def offer_downloads(run_id: str, frames: Mapping[str, pd.DataFrame]) -> None:
    """Offer a page's data as files, except empty ones.

    The files are made on click: making them whenever the page is drawn would slow it down.

    Args:
        run_id: run, or another word, that begins the files' names.
        frames: rows of each file, by its name.
    """
    offered = {name: frame for name, frame in frames.items() if not frame.empty}
    if not offered:
        return
    with st.expander("Download the figures"):
        st.caption("The rows behind the charts. For a chart as PNG: the camera at its upper right corner.")
        for name, frame in offered.items():
            row = st.container(horizontal=True, vertical_alignment="center")
            row.markdown(f"{name} ({len(frame):,} rows)")
            for form, (mime, made) in _FORMATS.items():
                file_name = f"{file_stem(f'{run_id}-{name}')}.{form.lower()}"
                row.download_button(
                    form, data=partial(made, frame), file_name=file_name, mime=mime,
                    key=f"download-{form}-{name}", on_click="ignore",
                )  # fmt: skip


def _without_pictures(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns=[name for name in frame.columns if str(name).startswith("png")])


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show a table, given by its headings and its rows."""
    show_frame(pd.DataFrame(list(rows), columns=list(columns)))


def show_frame(frame: pd.DataFrame, form: str = "") -> None:
    """Show a frame as a table; `form`, such as `%.3f`, is the format of its columns of floats."""
    numbers = [name for name in frame.columns if form and frame[name].dtype == float]
    formats: Any = {name: st.column_config.NumberColumn(format=form) for name in numbers}
    st.dataframe(frame, hide_index=True, column_config=formats)
