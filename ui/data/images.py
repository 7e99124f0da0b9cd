"""A run's held-out images: the course of their figures, the verdict on them, and the sources of edits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pandas as pd
import streamlit as st

from storage.errors import PromptFileError
from storage.evaluations.quality import JUDGE, PART, QUALITY, QualityVerdict, quality_verdict
from storage.prompts.files import load_prompts
from storage.prompts.sources import thumbnail
from storage.record.queries.images import figure_means, paired_figures
from storage.record.reading import RecordConnection
from ui.data.run import RunView


@dataclass(frozen=True)
class QualityView:
    """The look of a run's held-out images.

    Attributes:
        means: one row per evaluation; see `storage.record.queries.images.figure_means`.
        verdict: the latest evaluation against the untouched model; None before there are two.
    """

    means: pd.DataFrame = field(default_factory=lambda: pd.DataFrame({"iteration": []}))
    verdict: QualityVerdict | None = None

    @property
    def figures(self) -> list[str]:
        """The figures of quality that were measured, in display order."""
        return [name for name in QUALITY if name in self.means]

    @property
    def judges(self) -> pd.DataFrame | None:
        """Iteration and mean of the second judge after it; None if there is no second judge."""
        if JUDGE not in self.means:
            return None
        return cast("pd.DataFrame", self.means[["iteration", JUDGE]].dropna())

    @property
    def parts(self) -> list[str]:
        """The parts of the score, if it is a sum."""
        return [str(name).removeprefix(PART) for name in self.means if str(name).startswith(PART)]


def read_quality(connection: RecordConnection, run_id: str) -> QualityView:
    """Return the quality of a run."""
    pairs = paired_figures(connection, run_id)
    return QualityView(figure_means(connection, run_id), quality_verdict(pairs))


_SIDE = 256  # largest side of a source image on a page, in pixels


def sources_of(view: RunView, images: pd.DataFrame) -> dict[int, str]:
    """Return the images that the prompts of a run's pictures ask to edit, as data URIs by prompt_id.

    They come from the current prompt file: if the file or an image is gone, they are missing.
    """
    prompt_ids = tuple(sorted(set(images["prompt_id"].tolist())))
    return load_sources(str(view.setting("prompts", "evaluate")), prompt_ids)


@st.cache_data(ttl=600, max_entries=16, show_spinner=False)
def load_sources(prompts: str, prompt_ids: tuple[int, ...]) -> dict[int, str]:
    """Return the same for the run's `prompts.evaluate`; only for prompts with such an image."""
    try:
        return {
            prompt.prompt_id: thumbnail(prompt.source, _SIDE)
            for prompt in load_prompts(prompts)
            if prompt.source and prompt.prompt_id in prompt_ids
        }
    except PromptFileError:
        return {}
