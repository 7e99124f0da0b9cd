"""Qwen-Image: a vision language model as text encoder, packed latents, norm-preserving guidance.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLForConditionalGeneration

from gpu_runtime.models.families.pipeline_model import PipelineModel
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig

_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


class QwenImageModel(PipelineModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` of Qwen-Image."""

    PIPELINE = QwenImagePipeline
    TRANSFORMER = QwenImageTransformer2DModel
    VAE = AutoencoderKLQwenImage
    ENCODERS = {"text_encoder": Qwen2_5_VLForConditionalGeneration}  # noqa: RUF012
    TEXT_LENGTH = 512
    MASKED = True
    PACKED = True
    DROPPED = 34

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        return _TEMPLATE.format(prompt)

    @classmethod
    def latent_side(cls, vae: Mapping[str, Any]) -> int:
        """Return the side of a latent pixel in image pixels."""
        return 2 ** len(vae["temperal_downsample"])

    def _encode(self, prompt: str) -> Conditioning:
        return self._embedded(self._prompt_text(self._tokenizers, prompt, self.settings), self.text_length)

    def _embedded(self, text: str, length: int, **seen: torch.Tensor) -> Conditioning:
        """Return one row of `length` tokens; a mask hides those after the text's own."""
        tokens = self._tokenizers[self.TOKENIZERS[-1]](text, return_tensors="pt").to(self.device)
        encoder = self._encoders["text_encoder"]
        if seen:  # otherwise it would position an image's tokens like text
            seen["mm_token_type_ids"] = (tokens.input_ids == encoder.config.image_token_id).int()
        output = encoder(
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask,
            output_hidden_states=True,
            **seen,
        )
        return self._padded(output.hidden_states[-1][0, self._dropped(self._tokenizers) :], length)

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
            timestep=self._time(sigma_B),
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
        return super()._decode(latents_BSC)[:, :, 0]

    def _encode_picture(self, pixels: torch.Tensor) -> torch.Tensor:
        return super()._encode_picture(pixels[:, :, None])[:, :, 0]

    def _picture(self, latents_BSC: torch.Tensor) -> torch.Tensor:
        return super()._picture(latents_BSC)[:, :, None]
