"""The page Evaluations: results of `spotlight evaluate`, by tag, image by image, and compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from urllib.parse import quote

import pandas as pd
import streamlit as st

from storage.errors import SpotlightError
from storage.evaluations.quality import QUALITY
from storage.evaluations.separate import SeparateEvaluation
from storage.home import Home
from ui.elements.formatting import duration, moment, percent, plain_markdown
from ui.elements.image_grid import evaluation_html
from ui.elements.run_page import errors_shown
from ui.elements.widgets import offer_downloads, show_frame
from ui.pages.evaluations import data

_NONE = "-"
_AT_ONCE = 24  # pictures
_IMAGE_COLUMNS = ["prompt_id", "prompt", "tag", "seed_index", "score", "exact", "detail", "error"]


@errors_shown()
def _show() -> None:
    st.header("Evaluations", anchor=False)
    home = Home.from_environment()
    rows = data.load_evaluations(home)
    if not rows:
        st.info("No evaluations yet.", icon=":material/grading:")
        st.markdown("Score a run's newest checkpoint, or an untouched model, on its held-out prompts:")
        st.code("spotlight evaluate RUN\nspotlight evaluate --preset glyphs", language="bash")
        return
    shown = pd.DataFrame(
        [
            {
                "evaluation": row.evaluation_id, "when": moment(row.started_at), "of": _of(row),
                "iteration": row.iteration, "images": row.images, "score": row.score,
                "exact": row.exact if row.gives_verdict else math.nan,
                "took": duration(row.ended_at - row.started_at),
            }
            for row in rows
        ]
    )  # fmt: skip
    if not any(row.gives_verdict for row in rows):
        shown = shown.drop(columns="exact")
    show_frame(shown, "%.3f")
    st.caption("A run's own held-out evaluations are on its Convergence page.")
    _show_one(home, rows)


def _of(row: SeparateEvaluation) -> str:
    return row.run_id or "untouched model"


def _show_one(home: Home, rows: Sequence[SeparateEvaluation]) -> None:
    by_id = {row.evaluation_id: row for row in rows}
    ids, run_id = list(by_id), st.query_params.get("run")
    of_run = [row.evaluation_id for row in rows if row.run_id is not None and row.run_id == run_id]
    wanted = st.query_params.get("evaluation", of_run[0] if of_run else run_id)
    left, right = st.columns(2)
    index = ids.index(wanted) if wanted in ids else None if wanted else 0
    chosen = left.selectbox("Evaluation", ids, index=index, placeholder="Choose an existing one")
    if chosen is None:  # another choice would look like the one in the address
        st.warning(f"No evaluation or evaluated run is called {plain_markdown(str(wanted))}.")
        return
    st.query_params["evaluation"] = chosen
    others = [_NONE, *(other for other in ids if other != chosen)]
    before = right.selectbox("Compared with", others, key=f"before-{chosen}")
    row = by_id[chosen]
    images, figures = data.load_images(home, chosen)
    exact = f", {percent(row.exact)} exact" if row.gives_verdict else ""
    st.markdown(
        f"**Score {row.score:.3f}{exact}**, {row.images} images of "
        f"{plain_markdown(_of(row))} after {row.iteration} iterations."
    )
    if row.run_id:
        address = f"/?run={quote(row.run_id, safe='')}"
        st.link_button("The run of these weights", address, icon=":material/show_chart:")
    if figures["scorer_errors"]:
        st.warning(
            f"The scorer failed on {figures['scorer_errors']} images; no mean includes them.",
            icon=":material/visibility_off:",
        )
    table = data.figure_rows(figures)
    show_frame(table, "%.3f")
    if "quality" in figures:
        st.subheader("Image quality")
        means = [(QUALITY[name].title, mean) for name, mean in figures["quality"].items()]
        show_frame(pd.DataFrame(means, columns=["figure", "mean"]), "%.4f")
    if before and before != _NONE:
        _show_difference(home, before, chosen)
    st.subheader("Images")
    listed = images.reindex(columns=_IMAGE_COLUMNS)
    if not row.gives_verdict:
        listed = listed.drop(columns="exact")
    show_frame(listed, "%.2f")
    if row.folder:
        _show_pictures(row.folder, row.iteration, images)
    else:
        st.caption("The images were not kept; `spotlight evaluate --images FOLDER` keeps them.")
    offer_downloads(chosen, {"figures": table, "images": listed})


def _show_pictures(folder: str, iteration: int, images: pd.DataFrame) -> None:
    keys = [*zip(images["prompt_id"].tolist(), images["seed_index"].tolist(), strict=True)]
    first = images.head(_AT_ONCE)
    found = data.load_pictures(folder, tuple(keys[:_AT_ONCE]))
    pictured = first.assign(png=[found.get(key) for key in keys[:_AT_ONCE]], iteration=iteration)
    pictured = pictured.loc[pictured["png"].notna()]
    if not pictured.empty:
        st.html(evaluation_html(pictured))
    shown = f"{len(pictured)} of {len(images)} images are shown." if len(pictured) < len(images) else ""
    lacking = f" Missing: {len(first) - len(pictured)}." if len(pictured) < len(first) else ""
    st.caption(f"The images are in {plain_markdown(folder)}.{lacking} {shown}".rstrip())


def _show_difference(home: Home, before: str, after: str) -> None:
    st.subheader("Difference")
    try:
        found = data.load_difference(home, before, after)
    except SpotlightError as error:
        st.warning(plain_markdown(str(error)), icon=":material/compare_arrows:")
        return
    show_frame(data.figure_rows(found), "%+.3f")
    if found["quality"]:
        show_frame(data.quality_difference_rows(found["quality"]), "%.4f")
    differing = found["settings_that_differ"]
    note = f" Settings that differ: {', '.join(f'`{name}`' for name in differing)}." if differing else ""
    noise = "the same noise" if found["same_noise"] else "different noise"
    st.caption(f"{found['pairs']} pairs of images with the same prompt and seed, from {noise}.{note}")


_show()
