"""The options that families declare (`[model.options]`). torch is not imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from storage.config.model import ModelConfig
from storage.config.section import Section


class EditPlusOptions(Section):
    """Options of `qwen-image-edit-plus`."""

    images: int = Field(default=1, ge=1, le=3)
    """Source images of every prompt; with several, `image` of a row is a list."""


class WanOptions(Section):
    """Options of `wan2.2`."""

    experts: Literal["both", "high", "low"] = "both"
    """Trained transformers of a model that has two, for high and for low noise; the other one is frozen."""


def source_count(settings: ModelConfig) -> int:
    """Return the number of source images per prompt, in a family that edits."""
    return settings.options.get("images", 1)


def chosen_experts(settings: ModelConfig) -> str:
    """Return which of two transformers are trained: `both`, `high` or `low`."""
    return settings.options.get("experts", WanOptions.model_fields["experts"].default)


def trained_experts(settings: ModelConfig, experts: int) -> int:
    """Return how many of a model's transformers are trained."""
    return experts if chosen_experts(settings) == "both" else 1
