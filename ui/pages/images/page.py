"""The page Images: held-out prompts over the iterations, with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from storage.record.queries import images as image_queries
from ui.data.run import RunView, load, sources_of, with_verdicts
from ui.elements.image_grid import course_html, evaluation_html, large_html
from ui.elements.run_page import show_page
from ui.elements.widgets import offer_downloads

_ORDERS = ("as in the file", "most gained", "most lost")
_COLUMNS = 8  # evaluations in a row of the grid
_ROWS = 8  # prompts on a page of the grid
_AT_ONCE = 24  # prompts at one evaluation
_LARGE = 12  # evaluations shown of an enlarged prompt


def _spread(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` of the values, evenly spread, including the first and the last."""
    if len(values) <= most:
        return tuple(values)
    indices = [round(k * (len(values) - 1) / (most - 1)) for k in range(most)]
    return tuple(values[index] for index in dict.fromkeys(indices))


def _show_images(view: RunView) -> None:
    until = view.newest.evaluation_at
    images = load(image_queries.pictured_images, view, until=until)
    evaluations = load(image_queries.pictured_evaluations, view, until=until)
    if not images.empty:
        _show_grid(view, images, evaluations)
        _show_evaluation(view, images, evaluations)
        _show_large(view, images, evaluations)
        offer_downloads(view.row.run_id, {"scores of the pictured images": images})
    else:
        st.info("Images appear with the first evaluation.", icon=":material/hourglass:")


def _show_grid(view: RunView, pictured: pd.DataFrame, evaluations: list[int]) -> None:
    run_id = view.row.run_id
    left, middle, right = st.columns([2, 1, 1])
    words = left.text_input("Prompts that contain", key=f"words-{run_id}", placeholder="all")
    order = middle.selectbox("Order", _ORDERS, key=f"order-{run_id}") or _ORDERS[0]
    text = words.strip().casefold()
    images = pictured.loc[[text in prompt.casefold() for prompt in pictured["prompt"]]]
    if order != _ORDERS[0]:
        gained = images.assign(gain=images["score_latest"] - images["score_first"])
        images = gained.sort_values("gain", ascending=order == _ORDERS[2], kind="stable")
    if images.empty:
        st.caption("No pictured prompt contains this; clear the field to see all.")
        return
    pages = -(-len(images) // _ROWS)
    page = 1
    if pages > 1:
        page = right.number_input(f"Page (of {pages})", 1, pages, key=f"page-{run_id}-{order}-{words}")
    rows = images.iloc[(page - 1) * _ROWS : page * _ROWS]
    shown = _spread(evaluations, _COLUMNS)
    pictures = _pictures(view, _keys(rows), shown)
    st.html(course_html(pictures, sources_of(view, pictures)))
    note = "Click an image to enlarge it."
    if len(shown) < len(evaluations):
        note += f" {len(shown)} of {len(evaluations)} evaluations, evenly spread."
    st.caption(note)


def _keys(images: pd.DataFrame) -> tuple[tuple[int, int], ...]:
    return tuple(zip(images["prompt_id"].tolist(), images["seed_index"].tolist(), strict=True))


def _pictures(view: RunView, keys: tuple[tuple[int, int], ...], iterations: tuple[int, ...]) -> pd.DataFrame:
    until = view.newest.evaluation_at
    found = load(image_queries.pictures, view, iterations, keys, until=until)
    return with_verdicts(found, view.gives_verdict)


def _show_evaluation(view: RunView, pictured: pd.DataFrame, evaluations: list[int]) -> None:
    if len(evaluations) < 2:
        return
    st.subheader("At one evaluation")
    run_id = view.row.run_id
    iteration = st.select_slider("After iteration", evaluations, evaluations[-1], key=f"evaluation-{run_id}")
    rows = pictured.head(_AT_ONCE)
    images = _pictures(view, _keys(rows), (iteration,))
    st.html(evaluation_html(images, sources_of(view, images)))
    judged = images.loc[images["error"].isna()]
    if not judged.empty:
        exact = f", {int(judged['exact'].sum())} of them exact" if view.gives_verdict else ""
        st.caption(f"Mean score of these {len(judged)} images {judged['score'].mean():.3f}{exact}.")


def _show_large(view: RunView, images: pd.DataFrame, evaluations: list[int]) -> None:
    st.subheader("One prompt, enlarged")
    labels = {
        key: f"{prompt} (#{key[0]}, seed {key[1]})"
        for key, prompt in zip(_keys(images), images["prompt"], strict=True)
    }
    chosen = st.selectbox(
        "Prompt", list(labels), format_func=labels.__getitem__, key=f"large-{view.row.run_id}"
    )
    assert chosen is not None, "a select box with options and an index has a choice"
    shown = _spread(evaluations, _LARGE)
    pictures = _pictures(view, (chosen,), shown)
    st.html(large_html(pictures, sources_of(view, pictures)))


show_page(_show_images)
