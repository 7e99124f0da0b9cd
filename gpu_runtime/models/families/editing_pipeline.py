"""The common base of the families that edit an image: its sources' latents follow the sample's.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py; Z tokens of the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gpu_runtime.models.families.pipeline_model import PipelineModel
from gpu_runtime.models.family_options import source_count
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig
from storage.errors import ConfigurationError
from storage.pictures import frames_of


class EditingPipelineModel(PipelineModel):
    """A `gpu_runtime.models.protocol.EditingModel`; it precedes a family's class among the bases.

    Sources have the size of the image to make. The pipelines would first scale them to about a million
    pixels, which changes nothing if they have that many.
    """

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Refuse prompts without an image.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"{self.settings.path} edits an image, and a prompt has none; use a .jsonl file whose rows have "
            "`image`"
        )

    @torch.no_grad()
    def encode_edits(self, prompts: Sequence[str], sources: Sequence[np.ndarray]) -> Conditioning:
        """Encode B prompts and their images one by one; see `EditingModel`.

        Raises:
            ConfigurationError: if a prompt is longer than the text length.
        """
        for prompt in prompts:
            self.refuse_long(self._tokenizers, prompt, self.settings)
        rows = []
        with self._encoders_at_work():
            for prompt, source in zip(prompts, sources, strict=True):
                images = list(frames_of(source))
                negative = self._encode_with(self.settings.negative_prompt, images) if self._guides else None
                source_BZC = torch.cat([self._encoded_image(image) for image in images], dim=1)
                row = self._encode_with(prompt, images)
                rows.append(replace(row, source_BZC=source_BZC, negative=negative))
        return Conditioning.joined(rows)

    def decode_edits(self, latents_BSC: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        """Decode as `decode` does: these families do not need the source."""
        return self.decode(latents_BSC)

    @classmethod
    def image_tokens(cls, vae: Mapping[str, Any], settings: ModelConfig) -> int:
        """Return the image tokens of the sample and of its sources."""
        return (1 + source_count(settings)) * super().image_tokens(vae, settings)

    def _encode_with(self, prompt: str, images: Sequence[np.ndarray]) -> Conditioning:
        """Return one row of text; most encoders do not see the images."""
        return self._encode(prompt)

    def _encoded_negative(self) -> None:
        """Return None: each sample has its own, which may depend on the image."""

    def _schedule_tokens(self) -> int:
        return self.latent_shape[0]
