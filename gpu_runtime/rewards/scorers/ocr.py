"""The reward for rendered text: what an OCR engine reads, compared with what the prompt quotes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from rapidocr import RapidOCR

from gpu_runtime.rewards.options import OcrOptions
from gpu_runtime.rewards.text_rules import TextScorer, normalise, target_text
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord

_ENGINE_PARAMETERS: dict[str, Any] = {
    "Global.log_level": "error",
    # One thread: each worker has a scorer, and more threads than cores only contend.
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    # The least width that a line is padded to (320 by default). A wider image still gets the
    # width that it needs; a short sign costs a third of the time.
    "Rec.rec_img_shape": [3, 48, 72],
}


class OcrScorer(TextScorer):
    """A scorer that reads with RapidOCR: a page in reading order, wherever its text is; or one line."""

    name = "ocr"

    def __init__(self, options: OcrOptions) -> None:
        self._engine = RapidOCR(params=dict(_ENGINE_PARAMETERS))
        self._page = options.layout == "page"

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that quotes no text, or text in letters that the recogniser lacks.

        Raises:
            PromptFileError: if so; every image would score less than 1.
        """
        target = target_text(prompt.text)
        unknown = [letter for letter in dict.fromkeys(target) if letter not in self._letters]
        if unknown:
            raise PromptFileError(
                f"prompt {prompt.text!r} asks for {' '.join(unknown)}, which the ocr engine's recogniser has "
                "no letters for, so no image could be right; choose another text, or "
                "reward.scorer=deepseek-ocr"
            )

    @cached_property
    def _letters(self) -> frozenset[str]:
        """Letters that the recogniser may return, normalised like its answers."""
        line_HWC = np.full((*_ENGINE_PARAMETERS["Rec.rec_img_shape"][1:], 3), 255, np.uint8)
        # The engine loads its recogniser with the first line; it would find no line on a blank page.
        self._engine(line_HWC, use_det=False, use_cls=False, use_rec=True)
        recogniser: Any = self._engine.text_rec
        answers = recogniser.postprocess_op.character
        return frozenset(letter for answer in answers for letter in normalise(answer))

    def read(self, image_HWC: np.ndarray) -> str:
        """Read a uint8 RGB image of shape (H, W, 3); return an empty string if nothing is legible."""
        bgr_HWC = np.ascontiguousarray(image_HWC[..., ::-1])  # the engine's arrays are OpenCV's
        result = self._engine(bgr_HWC, use_det=self._page, use_cls=False, use_rec=True)
        return "".join(getattr(result, "txts", None) or ())
