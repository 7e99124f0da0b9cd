"""A CLIP (arXiv 2103.00020) loaded by transformers, which gives unit vectors of pictures and of texts.

Shape suffixes: B pictures or texts, D width of the shared space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

from gpu_runtime.models.files.hub_folder import local_folder
from gpu_runtime.rewards.judge_models.local_weights import load_whole
from storage.errors import ModelError


class Clip:
    """An encoder of pictures and texts as unit vectors in one space.

    Args:
        model: model with the two towers.
        tokenizer: tokenizer that cuts texts to what the text tower takes.
        processor: processor that resizes pictures to the model's size.
    """

    def __init__(self, model: CLIPModel, tokenizer: Any, processor: CLIPImageProcessorPil) -> None:
        self._model: Any = model.eval()
        self._tokenizer = tokenizer
        self._processor: Any = processor
        self.logit_scale = float(model.logit_scale.detach().exp())

    @classmethod
    def load(cls, setting: str, name: str, processor: str = "", processor_setting: str = "") -> Self:
        """Load a model from a folder, or by its name in the hub's cache.

        Args:
            setting: setting that names the model, for messages.
            name: name of the model.
            processor: name of the model that has the tokenizer and picture size, if it is another one.
            processor_setting: setting that names it.

        Raises:
            ModelError: if files are missing, or are not those of a CLIP.
        """
        folder = local_folder(setting, name)
        beside = local_folder(processor_setting, processor, weights=False) if processor else folder
        try:
            return cls(
                load_whole(CLIPModel, setting, folder),
                AutoTokenizer.from_pretrained(beside, local_files_only=True),
                CLIPImageProcessorPil.from_pretrained(beside, local_files_only=True),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{processor_setting or setting}: {beside} has no tokenizer and picture size of a CLIP that "
                f"transformers can load: {error}"
            ) from error

    def move(self, device: str) -> None:
        """Compute on a device from now on; results are on the CPU as before."""
        self._model.to(device)

    @torch.inference_mode()
    def of_pictures(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Return unit vectors of uint8 RGB pictures of shape (H, W, 3) each: shape (B, D)."""
        inputs = self._processor(images=list(images), return_tensors="pt").to(self._model.device)
        return _unit(self._model.get_image_features(**inputs).pooler_output).cpu()

    @torch.inference_mode()
    def of_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Return unit vectors of texts: shape (B, D). Texts too long for the model are cut off."""
        inputs = self._tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        inputs = inputs.to(self._model.device)
        return _unit(self._model.get_text_features(**inputs).pooler_output).cpu()


def _unit(vectors_BD: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors_BD, dim=-1)
