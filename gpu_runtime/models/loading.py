"""From configuration to a loaded model on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from gpu_runtime.models.embedded import FILES, EmbeddedModel, resolve_folder
from gpu_runtime.models.protocol import DiffusionModel
from storage.config import ModelConfig
from storage.errors import ConfigurationError


def load_model(config: ModelConfig) -> DiffusionModel:
    """Load the configured family from its path.

    Raises:
        ConfigurationError: if CUDA is asked for where there is none.
        ModelError: if files are missing or do not fit.
    """
    refuse_missing_cuda(config)
    device = torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")
    return EmbeddedModel.load(config.path, device=device)


def refuse_missing_cuda(config: ModelConfig) -> None:
    """Refuse a device that this machine has not.

    Raises:
        ConfigurationError: if CUDA is asked for where there is none.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("model.device = cuda, but no CUDA device is visible here; use auto or cpu")


def model_files(config: ModelConfig) -> list[Path]:
    """The files that the configured model is loaded from, in a fixed order.

    Raises:
        ModelError: if one is missing.
    """
    folder = resolve_folder(config.path)
    return [folder / name for name in FILES]
