"""The page Images: held-out prompts over the iterations, with the same seeds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import streamlit as st

from ui.data.methods import gives_verdict, with_verdicts
from ui.data.run import RunView
from ui.data.sources import sources_of
from ui.elements.downloads import offer_downloads
from ui.elements.image_grid import course_html, evaluation_html, large_html
from ui.elements.run_page import show_page
from ui.pages.images.data import (
    ORDERS,
    Image,
    Pictured,
    load_pictured,
    load_pictures,
    ordered,
    spread,
)

_COLUMNS = 8  # evaluations in a row of the grid
_ROWS = 8  # prompts on a page of it
_AT_ONCE = 24  # prompts at one evaluation
_LARGE = 12  # evaluations of an enlarged prompt


def _show_images(home: Path, view: RunView) -> None:
    pictured = load_pictured(home, view.row.run_id, view.newest.evaluation_at)
    if pictured.images.empty:
        _show_nothing(view)
        return
    _show_grid(home, view, pictured)
    _show_evaluation(home, view, pictured)
    _show_large(home, view, pictured)
    offer_downloads(view.row.run_id, {"scores of the pictured images": pictured.images})


def _show_nothing(view: RunView) -> None:
    if view.setting("evaluation", "gallery") == 0:  # a setting of earlier versions
        st.info("This run keeps no images.", icon=":material/image_not_supported:")
        return
    st.info("Images appear with the first evaluation.", icon=":material/hourglass:")


def _show_grid(home: Path, view: RunView, pictured: Pictured) -> None:
    run_id = view.row.run_id
    left, middle, right = st.columns([2, 1, 1])
    words = left.text_input("Prompts that contain", key=f"words-{run_id}", placeholder="all")
    order = middle.selectbox("Order", ORDERS, key=f"order-{run_id}") or ORDERS[0]
    images = ordered(pictured.images, order, words)
    if images.empty:
        st.caption("No pictured prompt contains this; empty the field to see all.")
        return
    pages = -(-len(images) // _ROWS)
    page = 1
    if pages > 1:
        page = right.number_input(f"Page (of {pages})", 1, pages, key=f"page-{run_id}-{order}-{words}")
    rows = images.iloc[(page - 1) * _ROWS : page * _ROWS]
    shown = spread(pictured.evaluations, _COLUMNS)
    keys = tuple(zip(rows["prompt_id"].tolist(), rows["seed_index"].tolist(), strict=True))
    pictures = _pictures(home, view, keys, shown)
    st.html(course_html(pictures, sources_of(view, pictures)))
    note = "Click an image to enlarge it."
    if len(shown) < len(pictured.evaluations):
        note += f" {len(shown)} of {len(pictured.evaluations)} evaluations, evenly spread."
    st.caption(note)


def _pictures(
    home: Path, view: RunView, keys: tuple[Image, ...], iterations: tuple[int, ...]
) -> pd.DataFrame:
    found = load_pictures(home, view.row.run_id, keys, iterations, view.newest.evaluation_at)
    return with_verdicts(found, gives_verdict(view))


def _show_evaluation(home: Path, view: RunView, pictured: Pictured) -> None:
    """Show all pictured prompts at one evaluation, which a slider chooses."""
    if len(pictured.evaluations) < 2:
        return
    st.subheader("At one evaluation")
    run_id = view.row.run_id
    iteration = st.select_slider(
        "After iteration", pictured.evaluations, pictured.evaluations[-1], key=f"evaluation-{run_id}"
    )
    rows = pictured.images.head(_AT_ONCE)
    keys = tuple(zip(rows["prompt_id"].tolist(), rows["seed_index"].tolist(), strict=True))
    images = _pictures(home, view, keys, (iteration,))
    st.html(evaluation_html(images, sources_of(view, images)))
    judged = images.loc[images["error"].isna()]
    if not judged.empty:
        exact = f", {int(judged['exact'].sum())} of them exact" if gives_verdict(view) else ""
        st.caption(f"Mean score of these {len(judged)} images {judged['score'].mean():.3f}{exact}.")


def _show_large(home: Path, view: RunView, pictured: Pictured) -> None:
    st.subheader("One prompt, enlarged")
    images = pictured.images
    labels = {
        (
            row["prompt_id"],
            row["seed_index"],
        ): f"{row['prompt']} (#{row['prompt_id']}, seed {row['seed_index']})"
        for row in images.to_dict("records")
    }
    chosen = st.selectbox(
        "Prompt", list(labels), format_func=labels.__getitem__, key=f"large-{view.row.run_id}"
    )
    assert chosen is not None, "a select box with options and an index has a choice"
    shown = spread(pictured.evaluations, _LARGE)
    pictures = _pictures(home, view, (chosen,), shown)
    st.html(large_html(pictures, sources_of(view, pictures)))


show_page(_show_images)
