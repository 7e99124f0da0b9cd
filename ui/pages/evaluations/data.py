"""The data of the page Evaluations: the separate evaluations, the images of one, and a comparison of two.

Functions that read the record raise StorageError if a file of it is damaged.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from storage.errors import PromptFileError
from storage.evaluations.figures import by_tag_and_overall, figures_of, graded
from storage.evaluations.quality import QUALITY
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation, compare_evaluations
from storage.home import Home
from storage.pictures import picture_file, read_frames
from storage.prompts.sources import thumbnail
from ui.data.run import CACHE_S, with_verdicts

_SIDE = 512  # largest side of a picture on the page, in pixels


@st.cache_data(ttl=CACHE_S, max_entries=4, show_spinner=False)
def load_evaluations(home: Home) -> list[SeparateEvaluation]:
    """Return all separate evaluations, newest first."""
    return EvaluationStore(home).all()


@st.cache_data(ttl=3600, max_entries=16, show_spinner=False)
def load_images(home: Home, evaluation_id: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return an evaluation's images, which never change, and their figures (`figures_of`).

    Both omit exact images if its reward gives no verdict.
    """
    store = EvaluationStore(home)
    given, images = store.find(evaluation_id).gives_verdict, store.images(evaluation_id)
    figures = figures_of(images) if given else graded(figures_of(images))
    return with_verdicts(pd.DataFrame([vars(image) for image in images]), given), figures


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def load_pictures(folder: str, keys: tuple[tuple[int, int], ...]) -> dict[tuple[int, int], bytes]:
    """Return the kept images of a folder in GenEval's layout, as PNG, or clips as WebP, scaled down.

    The keys are prompt_id and seed_index; missing and invalid images are left out.
    """
    found = {}
    for prompt_id, seed_index in keys:
        file = Path(folder) / f"{prompt_id:05}" / "samples" / f"{seed_index:04}.png"
        clip = file.with_suffix(".webp")
        with suppress(OSError):
            found[prompt_id, seed_index] = _scaled_clip(clip, clip.stat().st_mtime_ns)
            continue
        try:
            uri = thumbnail(str(file), _SIDE)
        except PromptFileError:
            continue  # the folder may have been moved; the page counts missing images
        found[prompt_id, seed_index] = base64.b64decode(uri.partition(",")[2])
    return found


@st.cache_data(ttl=3600, max_entries=100, show_spinner=False)
def _scaled_clip(clip: Path, written_ns: int) -> bytes:
    """Return a clip as WebP, scaled down, which is slow; `written_ns` is part of the cache's key."""
    return picture_file(read_frames(clip.read_bytes()), _SIDE)


load_difference = st.cache_data(ttl=3600, max_entries=16, show_spinner=False)(compare_evaluations)


def figure_rows(figures: dict[str, Any]) -> pd.DataFrame:
    """Return figures of `storage.evaluations.figures`, of scores or differences, by tag and overall."""
    rows = {tag or "no tag": row for tag, row in by_tag_and_overall(figures).items()}
    columns: dict[str, list[Any]] = {"tag": list(rows), "prompts": [row["prompts"] for row in rows.values()]}
    for name in ("score", "exact"):
        if name in figures:
            columns[name] = [float(row[name]) for row in rows.values()]
            for place, bound in enumerate(("low", "high")):
                columns[f"{name} {bound} (95 %)"] = [
                    float(row[f"{name}_interval"][place]) for row in rows.values()
                ]
    return pd.DataFrame(columns)


def quality_difference_rows(changes: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the changes in the look of images, results of `evaluations.separate.difference_of` by figure."""
    rows = [
        (QUALITY[name].title, change["before"], change["after"], change["after"] - change["before"],
         *(change["interval"] or (math.nan, math.nan)))
        for name, change in changes.items()
    ]  # fmt: skip
    return pd.DataFrame(
        rows, columns=["figure", "before", "after", "difference", "low (95 %)", "high (95 %)"]
    )
