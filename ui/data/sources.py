"""The source images of held-out prompts that ask for an edit."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from storage.errors import PromptFileError
from storage.prompts.files import load_prompts
from storage.prompts.sources import thumbnail
from ui.data.run import RunView

_SIDE = 256
"""The largest side of a source image on a page, in pixels."""


def sources_of(view: RunView, images: pd.DataFrame) -> dict[int, str]:
    """Return the images that the prompts of a run's pictures ask to edit, as data URIs by prompt_id.

    They come from the current prompt file: if the file or an image is gone, they are missing.

    Args:
        view: data of the run.
        images: pictures of the run, with a column prompt_id.
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
