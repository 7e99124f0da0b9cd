"""Qwen-Image 2.1: one sequence of text and image, whose text is as long as the prompt; unpacked latents.

The image's position in its sequence depends on the length of the text, so each sample goes through the
transformer alone, as in Z-Image. Published models are meant to be sampled without guidance. The VAE's images
have an alpha channel, which is dropped from decoded images and opaque in encoded ones.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage21, QwenImage21Pipeline, QwenImage21Transformer2DModel
from transformers import Qwen3VLForConditionalGeneration

from gpu_runtime.models.families.pipeline_model import PipelineModel
from gpu_runtime.models.families.qwen_image import QwenImageModel
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig

_SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"


class QwenImage21Model(QwenImageModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Qwen-Image 2.1."""

    PIPELINE = QwenImage21Pipeline
    TRANSFORMER = QwenImage21Transformer2DModel
    VAE = AutoencoderKLQwenImage21
    ENCODERS = {"text_encoder": Qwen3VLForConditionalGeneration}  # noqa: RUF012
    TOKENIZERS = ("processor",)
    CUTS_PADDING = True
    PACKED = False

    @classmethod
    def image_tokens(cls, vae: Mapping[str, Any], settings: ModelConfig) -> int:
        """Return the image's tokens, which are latent pixels, an even number on each side."""
        return cls.PATCH**2 * super().image_tokens(vae, settings)

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        return f"{_SYSTEM}<|im_start|>user\n{prompt or ' '}<|im_end|>\n<|im_start|>assistant\n"

    @classmethod
    def _dropped(cls, tokenizers: Mapping[str, Any]) -> int:
        return len(tokenizers["processor"](_SYSTEM).input_ids)

    def _encode(self, prompt: str) -> Conditioning:
        # The transformer reads the last layer before its norm; newer transformers return it after.
        norm = self._encoders["text_encoder"].model.language_model.norm
        handle = norm.register_forward_hook(lambda module, given, output: given[0])
        try:
            return super()._encode(prompt)
        finally:
            handle.remove()

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        parts = zip(latents_BSC.split(1), sigma_B.split(1), conditioning.texts, strict=True)
        return torch.cat([self._alone(*part) for part in parts])

    def _alone(self, latents_1SC: torch.Tensor, sigma_1: torch.Tensor, text_LE: torch.Tensor) -> torch.Tensor:
        tokens = latents_1SC.shape[1]
        # Each image position of the encoder stands for four tokens.
        is_image = torch.arange(len(text_LE) + tokens // 4, device=self.device) >= len(text_LE)
        return self.transformer(
            hidden_states=latents_1SC,
            timestep=self._time(sigma_1),
            encoder_hidden_states=text_LE[None].to(self.dtype),
            img_shapes=[[(1, *self._grid)]],
            img_mask=is_image[None],
            return_dict=False,
        )[0][:, -tokens:]

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        return super()._decode(latents_BSC)[:, :3]

    def _encode_picture(self, pixels: torch.Tensor) -> torch.Tensor:
        return super()._encode_picture(torch.cat([pixels, torch.ones_like(pixels[:, :1])], dim=1))

    def _guided(self, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        return PipelineModel._guided(self, positive, negative)
