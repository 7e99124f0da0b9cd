"""Reward for rendering text: what a real OCR engine reads against what the prompt quotes.

The definition is Flow-GRPO's (arXiv 2505.05470, section 5): one minus the edit distance over the
target's length, 1 where the target is a substring of what was read.
"""

from __future__ import annotations

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidocr import RapidOCR

from gpu_runtime.rewards.protocol import Score
from gpu_runtime.rewards.quoted_text import normalise, target_text
from storage.prompts.files import PromptRecord

_ENGINE_PARAMETERS = {
    "Global.log_level": "error",
    # One thread: scorers run one a worker, and more threads than cores only contend.
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    # The least width that a line is padded to (320 by default). A wider image still gets the
    # width that it needs; a short sign costs a third of the time.
    "Rec.rec_img_shape": [3, 48, 72],
}


def ocr_reward(target: str, read: str) -> float:
    """Return the reward in [0, 1]; both texts normalised, `target` not empty.

    1 if `target` is a substring of `read`, else 1 - min(edit distance, len(target)) / len(target).
    """
    if target in read:
        return 1.0
    return 1.0 - min(Levenshtein.distance(read, target), len(target)) / len(target)


class OcrScorer:
    """Reads an image with RapidOCR.

    Args:
        page: look for text anywhere in the image first, and read all of it in reading order, as photographs
            need; otherwise the whole image is read as one line, which a small sign fills.
    """

    name = "ocr"

    def __init__(self, page: bool = False) -> None:
        self._engine = RapidOCR(params=dict(_ENGINE_PARAMETERS))
        self._page = page

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that quotes no text.

        Raises:
            PromptFileError: there is nothing to compare with.
        """
        target_text(prompt.text)

    def read(self, image_HWC: np.ndarray) -> str:
        """Read a uint8 RGB image of shape (H, W, 3); an empty string where nothing is legible."""
        bgr_HWC = np.ascontiguousarray(image_HWC[..., ::-1])  # the engine's arrays are OpenCV's
        result = self._engine(bgr_HWC, use_det=self._page, use_cls=False, use_rec=True)
        return "".join(getattr(result, "txts", None) or ())

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score one image; an image with no legible text scores 0.

        Raises:
            PromptFileError: the prompt quotes no text.
        """
        target = target_text(prompt.text)
        read = self.read(image_HWC)
        value = ocr_reward(target, normalise(read))
        return Score(value, value == 1.0, read)
