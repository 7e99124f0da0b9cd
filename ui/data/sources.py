"""The images that held-out prompts ask to change."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from storage.errors import PromptFileError
from storage.prompts.files import load_prompts
from storage.prompts.sources import thumbnail
from ui.data.run import RunView

_SIDE = 256
"""Most pixels of a source image's side on a page."""


def sources_of(view: RunView, images: pd.DataFrame) -> dict[int, str]:
    """The images that the prompts of a run's pictures ask to change, as data URIs by prompt_id.

    They are read from the prompt file as it is now: without the file, or an image, they are missing.

    Args:
        view: of the run.
        images: its pictures, with a column prompt_id.
    """
    prompt_ids = tuple(sorted(set(images["prompt_id"].tolist())))
    return load_sources(str(view.setting("prompts", "evaluate")), prompt_ids)


@st.cache_data(ttl=600, max_entries=16, show_spinner=False)
def load_sources(prompts: str, prompt_ids: tuple[int, ...]) -> dict[int, str]:
    """The same by the run's `prompts.evaluate`; only of prompts that have one."""
    try:
        return {
            prompt.prompt_id: thumbnail(prompt.source, _SIDE)
            for prompt in load_prompts(prompts)
            if prompt.source and prompt.prompt_id in prompt_ids
        }
    except PromptFileError:
        return {}
