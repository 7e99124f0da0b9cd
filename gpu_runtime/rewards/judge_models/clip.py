"""A CLIP (arXiv 2103.00020) loaded by transformers, and the colour classifier of `geneval`.

Shape suffixes: B pictures or texts, N colours, D width of the shared space, H W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

from gpu_runtime.models.files.hub_folder import local_folder
from gpu_runtime.models.files.whole_weights import load_judge
from gpu_runtime.prompt_sets.geneval import COLOURS
from gpu_runtime.rewards.geneval_rules import Detection
from storage.errors import ModelError, RewardError

GREY = 0x99
"""Value of all channels where the crop shows something other than the object."""

_PHRASES = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)
"""GenEval's phrases for a colour; their vectors are averaged."""


class Clip:
    """An encoder of pictures and texts as unit vectors in one space.

    Args:
        tokenizer: tokenizer that truncates texts to the text tower's length.
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
            processor: name of the model that has the tokenizer and picture size, if it is another one.

        Raises:
            ModelError: if files are missing, or are not those of a CLIP.
        """
        folder = local_folder(setting, name)
        beside = local_folder(processor_setting, processor, weights=False) if processor else folder
        try:
            return cls(
                load_judge(CLIPModel, setting, folder),
                AutoTokenizer.from_pretrained(beside, local_files_only=True),
                CLIPImageProcessorPil.from_pretrained(beside, local_files_only=True),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{processor_setting or setting}: {beside} has no CLIP tokenizer and picture size that "
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
        """Return unit vectors of texts: shape (B, D). Texts too long for the model are truncated."""
        inputs = self._tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        inputs = inputs.to(self._model.device)
        return _unit(self._model.get_text_features(**inputs).pooler_output).cpu()


def _unit(vectors_BD: torch.Tensor) -> torch.Tensor:
    if not vectors_BD.isfinite().all():  # max() would turn a NaN into a score of 0
        raise RewardError("CLIP's vectors are not finite; download the model again, or judge on the CPU")
    return torch.nn.functional.normalize(vectors_BD, dim=-1)


class ClipColours:
    """A classifier of objects' colours by CLIP."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._texts_ND: dict[str, torch.Tensor] = {}  # a unit vector for each colour, by class

    def move(self, device: str) -> None:
        """Compute on a device from now on."""
        self._clip.move(device)

    def colours_of(self, image_HWC: np.ndarray, found: Sequence[Detection]) -> list[str]:
        """Return one of `COLOURS` for each object found in a uint8 RGB picture of shape (H, W, 3)."""
        colours = []
        for item in found:  # one at a time, so that no answer depends on its neighbours
            name = item.class_name
            if name not in self._texts_ND:
                texts = [text.format(colour=colour, name=name) for colour in COLOURS for text in _PHRASES]
                texts_ND = self._clip.of_texts(texts).reshape(len(COLOURS), len(_PHRASES), -1).mean(1)
                self._texts_ND[name] = _unit(texts_ND)
            picture_1D = self._clip.of_pictures([crop(image_HWC, item)])
            likeness_N = (picture_1D @ self._texts_ND[name].T)[0]
            colours.append(COLOURS[int(likeness_N.argmax())])
        return colours


def crop(image_HWC: np.ndarray, item: Detection) -> np.ndarray:
    """Return the object's box of the picture, the rest greyed: uint8, (box height, box width, 3)."""
    shown_HWC = image_HWC
    if item.mask_HW is not None:
        shown_HWC = np.where(item.mask_HW[..., None], image_HWC, np.uint8(GREY))
    left, top, right, bottom = (round(edge) for edge in item.box)
    return np.ascontiguousarray(shown_HWC[top : max(bottom, top + 1), left : max(right, left + 1)])
