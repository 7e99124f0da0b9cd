"""The cached data of the page Images: the list of images, and the pictures that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from storage.home import Home
from storage.record.queries import images as image_queries
from storage.record.reading import Records

ORDERS = ("as in the file", "most gained", "most lost")
"""Orders of the grid."""


Image = tuple[int, int]
"""A held-out image: prompt_id and seed_index."""


@dataclass(frozen=True)
class Pictured:
    """The images that have pictures, and the evaluations that do.

    Attributes:
        images: frame from `storage.record.queries.images.pictured_images`.
        evaluations: iterations in order; 0 is before training.
    """

    images: pd.DataFrame
    evaluations: list[int]


@st.cache_data(ttl=60, max_entries=16, show_spinner=False)
def load_pictured(home: Path, run_id: str, evaluation_at: float) -> Pictured:
    """Return the images and evaluations of a run that have pictures.

    Args:
        home: home that holds the runs.
        run_id: the run.
        evaluation_at: end of its latest evaluation; part of the cache's key.

    Raises:
        StorageError: a file of the record is damaged.
    """
    with Records(Home(home)).reading(run_id) as connection:
        return Pictured(
            image_queries.pictured_images(connection, run_id),
            image_queries.pictured_evaluations(connection, run_id),
        )


@st.cache_data(ttl=60, max_entries=32, show_spinner=False)
def load_pictures(
    home: Path, run_id: str, images: tuple[Image, ...], iterations: tuple[int, ...], evaluation_at: float
) -> pd.DataFrame:
    """Return the pictures of some images at some evaluations; see `storage.record.queries.images.pictures`.

    Args:
        home: home that holds the runs.
        run_id: the run.
        images: images to show.
        iterations: iterations of the evaluations.
        evaluation_at: end of the latest evaluation; part of the cache's key.

    Raises:
        StorageError: a file of the record is damaged.
    """
    with Records(Home(home)).reading(run_id) as connection:
        return image_queries.pictures(connection, run_id, images, iterations)


def spread(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most `most` of the values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return tuple(values)
    indices = [round(k * (len(values) - 1) / (most - 1)) for k in range(most)]
    return tuple(values[index] for index in dict.fromkeys(indices))


def ordered(images: pd.DataFrame, order: str, words: str) -> pd.DataFrame:
    """Return the images whose prompt contains the words, in the given order.

    Args:
        images: frame as in `Pictured`.
        order: one of `ORDERS`.
        words: words to search for; empty for all images.
    """
    text = words.strip().casefold()
    kept = images.loc[[text in prompt.casefold() for prompt in images["prompt"]]]
    gain = kept["score_latest"] - kept["score_first"]
    if order == ORDERS[0]:
        return kept
    return kept.assign(gain=gain).sort_values("gain", ascending=order == ORDERS[2], kind="stable")
