"""An embedded model as the checks before a run see it: it is small, so it is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu_runtime.models.protocol import DiffusionModel
from storage.config.run_config import RunConfig


class EmbeddedOutline:
    """Offers what `gpu_runtime.models.checks.pipeline_outline.PipelineOutline` does, of a loaded model."""

    def __init__(self, model: DiffusionModel) -> None:
        self._model = model
        self.transformer = model.transformer

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Refuse a prompt that the model cannot encode.

        Raises:
            ConfigurationError: naming the prompt.
        """
        self._model.encode_prompts(prompts)

    def check_machine(self, config: RunConfig | None = None) -> None:
        """Nothing to refuse: it has a few million parameters, and the kernel of all CPUs."""

    def sequence_lengths(self) -> tuple[int, int]:
        """Image and text tokens of a sample."""
        return self._model.sequence_lengths()

    def text_length_for(self, degree: int) -> None:
        """No other: the length is the model's own, and a mask hides what is padded."""

    def blank_image(self) -> np.ndarray:
        """What the model decodes zeros to, uint8, shape (H, W, 3)."""
        return self._model.decode(torch.zeros(1, *self._model.latent_shape))[0].numpy()
