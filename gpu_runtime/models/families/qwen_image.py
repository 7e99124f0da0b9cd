"""Qwen-Image: a vision language model as text encoder, packed latents, norm-preserving guidance.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLForConditionalGeneration

from gpu_runtime.models.families.pipeline_model import PipelineModel, unpacked
from gpu_runtime.models.protocol import Conditioning

# The template that the model was trained with; its first tokens are the same for all prompts and dropped.
_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
_DROPPED = 34


class QwenImageModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Qwen-Image."""

    PIPELINE = QwenImagePipeline
    TRANSFORMER = QwenImageTransformer2DModel
    VAE = AutoencoderKLQwenImage
    ENCODERS = {"text_encoder": Qwen2_5_VLForConditionalGeneration}  # noqa: RUF012
    TOKENIZERS = ("tokenizer",)
    TEXT_LENGTH = 512
    MASKED = True

    @classmethod
    def count_tokens(cls, tokenizers: Mapping[str, Any], prompt: str) -> int:
        """Return the tokens of the template with the prompt in it, less the dropped ones."""
        return len(tokenizers["tokenizer"](_TEMPLATE.format(prompt)).input_ids) - _DROPPED

    @classmethod
    def pixels_a_token(cls, vae: Mapping[str, Any], transformer: Mapping[str, Any]) -> int:
        """Return the side of a token in image pixels: two latent pixels."""
        return 2 * 2 ** len(vae["temperal_downsample"])

    def _encode(self, prompt: str) -> Conditioning:
        tokens = self._tokenizers["tokenizer"](_TEMPLATE.format(prompt), return_tensors="pt")
        encoder = self._encoders["text_encoder"]
        output = encoder(
            input_ids=tokens.input_ids.to(self.device),
            attention_mask=tokens.attention_mask.to(self.device),
            output_hidden_states=True,
        )
        return self._padded(output.hidden_states[-1][0, _DROPPED:], self.text_length)

    def _padded(self, real_LE: torch.Tensor, length: int) -> Conditioning:
        """Return one row of `length` tokens; a mask hides those after the real ones."""
        embeds_BLE = real_LE.new_zeros(1, length, real_LE.shape[1])
        embeds_BLE[0, : len(real_LE)] = real_LE
        mask_BL = torch.arange(length, device=self.device)[None] < len(real_LE)
        return Conditioning(embeds_BLE, mask_BL)

    def _predict(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        # The text keeps its full length and the mask hides the padding, as in the embedded model.
        return self.transformer(
            hidden_states=latents_BSC,
            timestep=(sigma_B * 1000).to(self.dtype) / 1000,
            encoder_hidden_states=conditioning.embeds_BLE.to(self.dtype),
            encoder_hidden_states_mask=conditioning.mask_BL,
            img_shapes=[[(1, *self._grid)] * self._frames(latents_BSC)] * len(latents_BSC),
            return_dict=False,
        )[0]

    def _guided(self, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        """Apply classifier-free guidance, with each token rescaled to its norm without guidance."""
        guided = super()._guided(positive, negative)
        return guided * (positive.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True))

    def _decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        rows, columns = self._grid
        latents = unpacked(latents_BSC, 2 * rows, 2 * columns)[:, :, None]
        mean, std = self._latents_scale()
        return self.vae.decode(latents * std + mean, return_dict=False)[0][:, :, 0]

    def _latents_scale(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and deviation of each channel of the VAE's latents: (1, C, 1, 1, 1)."""
        mean, std = (
            torch.tensor(self.vae.config[name], device=self.device).view(1, -1, 1, 1, 1)
            for name in ("latents_mean", "latents_std")
        )
        return mean, std
