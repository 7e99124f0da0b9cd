"""Qwen-Image-Edit: Qwen-Image that edits an image, which its text encoder also sees.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import QwenImageEditPipeline

from gpu_runtime.models.families.editing_pipeline import EditingPipelineModel
from gpu_runtime.models.families.qwen_image import QwenImageModel
from gpu_runtime.models.files.pipeline_folder import PartKind
from gpu_runtime.models.protocol import Conditioning

# The template that the model was trained with; its first tokens are the same for all prompts and dropped.
_SYSTEM = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate "
    "a new image that meets the user's requirements while maintaining consistency with the original input "
    "where appropriate.<|im_end|>\n<|im_start|>user\n"
)
_IMAGE = "<|image_pad|>"
_DROPPED = 64


class QwenImageEditModel(EditingPipelineModel, QwenImageModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` and `EditingModel` of Qwen-Image-Edit."""

    PIPELINE = QwenImageEditPipeline
    PROCESSOR = "processor"
    """Folder of the processor that prepares the image for the text encoder."""

    @classmethod
    def part_kinds(cls) -> dict[str, PartKind]:
        """Return the parts of a pipeline's folder that the family needs."""
        kinds = super().part_kinds()
        kinds[cls.PROCESSOR] = "processor"
        return kinds

    @classmethod
    def count_tokens(cls, tokenizers: Mapping[str, Any], prompt: str) -> int:
        """Return the tokens of the template with the prompt in it, less the dropped ones and the image's."""
        return len(tokenizers["tokenizer"](_text(prompt, 0)).input_ids) - _DROPPED

    @classmethod
    def text_tokens(cls, tokenizers: Mapping[str, Any], text_length: int, height: int, width: int) -> int:
        """Return the tokens of a prompt and those that the encoder makes of the image.

        Args:
            tokenizers: tokenizers and the image processor, by the names of their folders.
            text_length: text tokens of a prompt.
            height: height of the image in pixels.
            width: width of the image in pixels.
        """
        processor = tokenizers[cls.PROCESSOR]
        patches = processor.get_number_of_image_patches(height, width, {})
        return text_length + patches // processor.merge_size**2

    def _encode_with(self, prompt: str, source_HWC: np.ndarray) -> Conditioning:
        seen = self._tokenizers[self.PROCESSOR](images=[source_HWC], return_tensors="pt").to(self.device)
        length = self.sequence_lengths()[1]
        tokens = self._tokenizers["tokenizer"](
            _text(prompt, length - self.text_length), return_tensors="pt"
        ).to(self.device)
        # As in the pipeline, the encoder is not told which tokens are the image's: it treats them as text.
        output = self._encoders["text_encoder"](
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask,
            pixel_values=seen["pixel_values"],
            image_grid_thw=seen["image_grid_thw"],
            output_hidden_states=True,
        )
        return self._padded(output.hidden_states[-1][0, _DROPPED:], length)

    def _encode_source(self, pixels_1CHW: torch.Tensor) -> torch.Tensor:
        latents = self.vae.encode(pixels_1CHW[:, :, None]).latent_dist.mode()
        mean, std = self._latents_scale()
        return ((latents - mean) / std)[:, :, 0]


def _text(prompt: str, image_tokens: int) -> str:
    """Return the template with a prompt and `image_tokens` tokens of an image in it."""
    return (
        f"{_SYSTEM}<|vision_start|>{_IMAGE * image_tokens}<|vision_end|>{prompt}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
