"""The options that families declare (`[model.options]`). torch is not imported here."""

from __future__ import annotations

from pydantic import Field

from storage.config.model import ModelConfig
from storage.config.section import Section


class EditPlusOptions(Section):
    """Options of `qwen-image-edit-plus`."""

    images: int = Field(default=1, ge=1, le=3)
    """Source images of every prompt; with several, `image` of a row is a list."""


def source_count(settings: ModelConfig) -> int:
    """Return the source images of a prompt, in a family that edits."""
    return settings.options.get("images", 1)
