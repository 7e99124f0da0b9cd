"""Tiles of figures, all of the same size, and downloads of a page's figures as CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from storage.text import file_stem

TILE_PX = 186
"""Width of a tile: six in a row of a window 1,280 wide; `ui/server/narrow.css` sets two in a narrow one's."""

PLOT_SETTINGS = {
    "displaylogo": False,
    "modeBarButtons": [["toImage"]],
    "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "spotlight"},
}
"""The settings for `st.plotly_chart`: one button, which saves the plot as PNG."""


def show_in_pairs(figures: Sequence[go.Figure], key: str) -> list[DeltaGenerator]:
    """Show charts, two in a row; return the cells of these rows."""
    columns = [column for _ in figures[::2] for column in st.columns(2)]
    for number, (column, figure) in enumerate(zip(columns, figures, strict=False)):
        column.plotly_chart(figure, key=f"{key}-{number}", config=PLOT_SETTINGS)
    return columns


Tile = tuple[str, str, str | None] | tuple[str, str, str | None, str]
"""The title of a tile, its figure (`-` for none), a second one in small type, perhaps its meaning."""


def show_tiles(*tiles: Tile, row: DeltaGenerator | None = None) -> None:
    """Show figures in a row, by default a new one; it wraps, where columns would cut the figures off."""
    row = row or st.container(horizontal=True)
    for title, value, below, *meaning in tiles:
        row.metric(
            title, value, below, delta_color="off", delta_arrow="off", border=True, width=TILE_PX,
            height="stretch", help=meaning[0] if meaning else None,
        )  # fmt: skip


_FORMATS = {"CSV": "text/csv", "Parquet": "application/vnd.apache.parquet"}


def as_file(frame: pd.DataFrame, form: str) -> bytes:
    """Return the frame as a file of one of `_FORMATS`, in UTF-8; pictures are left out."""
    kept = frame.drop(columns=[name for name in frame.columns if str(name).startswith("png")])
    return kept.to_csv(index=False).encode() if form == "CSV" else kept.to_parquet(index=False)


def offer_downloads(run_id: str, frames: Mapping[str, pd.DataFrame]) -> None:
    """Offer a page's frames as files, by their names, except empty ones; `run_id` begins the files' names.

    The files are made on click: making them whenever the page is drawn would slow it down.
    """
    offered = {name: frame for name, frame in frames.items() if not frame.empty}
    if not offered:
        return
    with st.expander("Download the figures"):
        st.caption(
            "The rows behind the charts. To save a chart as PNG, use the camera in its upper right corner."
        )
        for name, frame in offered.items():
            row = st.container(horizontal=True, vertical_alignment="center")
            row.markdown(f"{name} ({len(frame):,} rows)")
            for form, mime in _FORMATS.items():
                file_name = f"{file_stem(f'{run_id}-{name}')}.{form.lower()}"
                row.download_button(
                    form, data=partial(as_file, frame, form), file_name=file_name, mime=mime,
                    key=f"download-{form}-{name}", on_click="ignore",
                )  # fmt: skip


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Show a table, given by its headings and its rows."""
    show_frame(pd.DataFrame(list(rows), columns=list(columns)))


def show_frame(frame: pd.DataFrame, form: str = "") -> None:
    """Show a frame as a table; `form`, such as `%.3f`, is the format of its columns of floats."""
    numbers = [name for name in frame.columns if form and frame[name].dtype == float]
    formats: Any = {name: st.column_config.NumberColumn(format=form) for name in numbers}
    st.dataframe(frame, hide_index=True, column_config=formats)
