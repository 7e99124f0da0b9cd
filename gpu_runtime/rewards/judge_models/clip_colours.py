"""The colour classifier of `geneval`: CLIP chooses among ten colours, object by object.

Shape suffixes: B objects, N colours, D width of CLIP's space, H W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gpu_runtime.prompt_sets.geneval import COLOURS
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.rewards.judge_models.clip import Clip

GREY = 0x99
"""Value of all channels where the crop shows something other than the object."""

_SAID = (
    "a photo of a {colour} {name}",
    "a photo of a {colour}-colored {name}",
    "a photo of a {colour} object",
)
"""GenEval's phrases for a colour; their vectors are averaged."""


class ClipColours:
    """A classifier of objects' colours by CLIP."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._texts: dict[str, torch.Tensor] = {}

    def move(self, device: str) -> None:
        """Compute on a device from now on."""
        self._clip.move(device)

    def colours_of(self, image_HWC: np.ndarray, found: Sequence[Detection]) -> list[str]:
        """Return one of `COLOURS` for each object found in a uint8 RGB picture of shape (H, W, 3)."""
        colours = []
        for item in found:  # one at a time, so that no answer depends on its neighbours
            picture_1D = self._clip.of_pictures([crop(image_HWC, item)])
            likeness_N = (picture_1D @ self._colours_of_class(item.class_name).T)[0]
            colours.append(COLOURS[int(likeness_N.argmax())])
        return colours

    def _colours_of_class(self, name: str) -> torch.Tensor:
        """Return a unit vector for each colour of a class: shape (N, D); cached, as classes recur."""
        if name not in self._texts:
            said = [text.format(colour=colour, name=name) for colour in COLOURS for text in _SAID]
            vectors_ND = self._clip.of_texts(said).reshape(len(COLOURS), len(_SAID), -1).mean(1)
            self._texts[name] = torch.nn.functional.normalize(vectors_ND, dim=-1)
        return self._texts[name]


def crop(image_HWC: np.ndarray, item: Detection) -> np.ndarray:
    """Return the picture within the object's box, the rest greyed: uint8, (box height, box width, 3)."""
    shown_HWC = image_HWC
    if item.mask_HW is not None:
        shown_HWC = np.where(item.mask_HW[..., None], image_HWC, np.uint8(GREY))
    left, top, right, bottom = (round(edge) for edge in item.box)
    return np.ascontiguousarray(shown_HWC[top : max(bottom, top + 1), left : max(right, left + 1)])
