"""Z-Image: a language model as text encoder, one sequence of image and text, one latent pixel per token.

The image's position in its sequence depends on the length of the text, so a batch of several prompts
would be padded to the longest, and a sample would depend on its neighbours. Each sample therefore goes
through the transformer alone.

Guidance counts as in the other families, where 1 means none; this pipeline's `guidance_scale` is 1 less.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKL, ZImagePipeline, ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from transformers import Qwen3Model

from gpu_runtime.models.families.pipeline_model import PipelineModel, as_tokens
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig


class ZImageModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Z-Image."""

    PIPELINE = ZImagePipeline
    TRANSFORMER = ZImageTransformer2DModel
    VAE = AutoencoderKL
    ENCODERS = {"text_encoder": Qwen3Model}  # noqa: RUF012
    TEXT_LENGTH = 512
    CUTS_PADDING = True
    THINKS = True

    @classmethod
    def image_tokens(cls, vae: Mapping[str, Any], settings: ModelConfig) -> int:
        """Return the image's tokens, which the transformer itself pads to a multiple of 32."""
        return -(-super().image_tokens(vae, settings) // SEQ_MULTI_OF) * SEQ_MULTI_OF

    @classmethod
    def text_tokens(cls, tokenizers: Mapping[str, Any], text_length: int, settings: ModelConfig) -> int:
        """Return the multiple that the transformer pads each text to; they do not share one length."""
        return SEQ_MULTI_OF

    def _schedule_tokens(self) -> int:
        return self.latent_shape[0] // self.PATCH**2

    def _encode(self, prompt: str) -> Conditioning:
        tokens = self._prompt_tokens(prompt)
        mask_BL = tokens.attention_mask.bool()
        output = self._encoders["text_encoder"](
            input_ids=tokens.input_ids, attention_mask=mask_BL, output_hidden_states=True
        )
        return Conditioning(output.hidden_states[-2], mask_BL)

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        latents_BCfhw = self._as_box(latents_BSC)[:, :, None]
        # This transformer's time runs from noise to image.
        time_B = (1000 - sigma_B * 1000) / 1000
        rows = [
            self.transformer(
                [latents_BCfhw[row]], time_B[row : row + 1], [text_LE.to(self.dtype)], return_dict=False
            )[0][0]
            for row, text_LE in enumerate(conditioning.texts)
        ]
        return -as_tokens(torch.stack(rows)[:, :, 0])
