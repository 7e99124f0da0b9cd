"""From configuration to a loaded model on a device."""

from __future__ import annotations

import torch

from gpu_runtime.models.embedded import EmbeddedModel
from gpu_runtime.models.protocol import DiffusionModel
from storage.config import ModelConfig
from storage.errors import ConfigurationError


def load_model(config: ModelConfig) -> DiffusionModel:
    """Load the configured family from its path.

    Raises:
        ConfigurationError: if CUDA is asked for where there is none.
        ModelError: if files are missing or do not fit.
    """
    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise ConfigurationError("model.device = cuda, but no CUDA device is visible here; use auto or cpu")
    device = torch.device("cuda" if cuda and config.device != "cpu" else "cpu")
    return EmbeddedModel.load(config.path, device=device)
