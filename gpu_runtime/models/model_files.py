"""The files that a model is loaded from; an embedded one's are found without torch."""

from __future__ import annotations

from pathlib import Path

from gpu_runtime.models.embedded_folder import FILES, resolve_folder
from storage.config.model import ModelConfig


def model_files(config: ModelConfig) -> list[Path]:
    """The files that the configured model is loaded from, in a fixed order.

    Raises:
        ModelError: if one is missing.
    """
    if config.family == "embedded":
        folder = resolve_folder(config.path)
        return [folder / name for name in FILES]
    from gpu_runtime.models.pipeline_outline import find_pipeline

    return find_pipeline(config).files()
