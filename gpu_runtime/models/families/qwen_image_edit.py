"""Qwen-Image-Edit: Qwen-Image for editing images, which its text encoder also sees.

Edit takes one image, and Edit-2509 and later up to three, which the encoder sees scaled down. The encoder is
told which tokens are an image's, as in its training; diffusers 0.42 leaves that out, and transformers 5 then
takes them for text.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import (
    CONDITION_IMAGE_SIZE,
    calculate_dimensions,
)
from PIL import Image

from gpu_runtime.models.families.editing_pipeline import EditingPipelineModel
from gpu_runtime.models.families.qwen_image import QwenImageModel
from gpu_runtime.models.family_options import source_count
from gpu_runtime.models.files.pipeline_folder import PartKind
from gpu_runtime.models.protocol import Conditioning
from storage.config.model import ModelConfig

_SYSTEM = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate "
    "a new image that meets the user's requirements while maintaining consistency with the original input "
    "where appropriate.<|im_end|>\n<|im_start|>user\n"
)


class QwenImageEditModel(EditingPipelineModel, QwenImageModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` and `EditingModel` of Qwen-Image-Edit."""

    PIPELINE = QwenImageEditPipeline
    DROPPED = 64
    PROCESSOR = "processor"
    """Folder of the processor that prepares images for the text encoder."""

    CAPTION = ""
    """Text before an image, with its number."""

    @classmethod
    def part_kinds(cls) -> dict[str, PartKind]:
        """Return the parts of a pipeline's folder that the family needs."""
        kinds = super().part_kinds()
        kinds[cls.PROCESSOR] = "processor"
        return kinds

    @classmethod
    def _prompt_text(cls, tokenizers: Mapping[str, Any], prompt: str, settings: ModelConfig) -> str:
        """Return the template with the prompt in it, without the tokens of the images."""
        return cls._text(prompt, settings, 0)

    @classmethod
    def text_tokens(cls, tokenizers: Mapping[str, Any], text_length: int, settings: ModelConfig) -> int:
        """Return the tokens of a prompt and those that the encoder makes of the images.

        Args:
            tokenizers: tokenizers and the image processor, by folder name.
        """
        processor = tokenizers[cls.PROCESSOR]
        patches = processor.get_number_of_image_patches(*cls._seen_size(settings), {})
        return text_length + source_count(settings) * (patches // processor.merge_size**2)

    def _encode_with(self, prompt: str, images: Sequence[np.ndarray]) -> Conditioning:
        seen = self._tokenizers[self.PROCESSOR](
            images=[self._seen(image) for image in images], return_tensors="pt"
        ).to(self.device)
        length = self.sequence_lengths()[1]
        of_an_image = (length - self.text_length) // len(images)
        return self._embedded(
            self._text(prompt, self.settings, of_an_image),
            length,
            pixel_values=seen["pixel_values"],
            image_grid_thw=seen["image_grid_thw"],
        )

    @classmethod
    def _text(cls, prompt: str, settings: ModelConfig, tokens: int) -> str:
        """Return the template with a prompt and `tokens` tokens for each image in it."""
        images = (
            f"{cls.CAPTION.format(number)}<|vision_start|>{'<|image_pad|>' * tokens}<|vision_end|>"
            for number in range(1, 1 + source_count(settings))
        )
        return f"{_SYSTEM}{''.join(images)}{prompt}<|im_end|>\n<|im_start|>assistant\n"

    @classmethod
    def _seen_size(cls, settings: ModelConfig) -> tuple[int, int]:
        """Return the height and width at which the encoder gets an image."""
        return settings.size

    def _seen(self, image_HWC: np.ndarray) -> Any:
        return image_HWC


class QwenImageEditPlusModel(QwenImageEditModel):
    """The `gpu_runtime.models.protocol.EditingModel` of Qwen-Image-Edit-2509 and 2511."""

    PIPELINE = QwenImageEditPlusPipeline
    CAPTION = "Picture {}: "

    @classmethod
    def _seen_size(cls, settings: ModelConfig) -> tuple[int, int]:
        height, width = settings.size
        seen_width, seen_height = calculate_dimensions(CONDITION_IMAGE_SIZE, width / height)
        return seen_height, seen_width

    def _seen(self, image_HWC: np.ndarray) -> Any:
        height, width = self._seen_size(self.settings)
        return Image.fromarray(image_HWC).resize((width, height), Image.Resampling.LANCZOS)
