"""The reward for rendered text, read by DeepSeek-OCR-2 (arXiv 2601.20552) through transformers' class.

It judges as `ocr` does. It reads whole pictures, scripts and layouts that a single-line recogniser cannot,
and needs a GPU to be quick (`runtime.scorer_gpu`), or a server that has one (scorer `remote`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    DeepseekOcr2ForConditionalGeneration,
    DeepseekOcr2ImageProcessorPil,
    DeepseekOcr2Processor,
)

from gpu_runtime.models.files.hub_folder import local_folder
from gpu_runtime.models.files.whole_weights import load_judge
from gpu_runtime.rewards.options import DeepseekOcrOptions
from gpu_runtime.rewards.text_rules import TextScorer
from storage.errors import ModelError

ASKED = "<image>\nFree OCR."
"""The model's instruction, which it was trained to answer with the text alone."""


class DeepseekOcrScorer(TextScorer):
    """A scorer that reads with DeepSeek-OCR-2.

    Raises:
        ModelError: if files are missing, or are those of another model.
    """

    name = "deepseek-ocr"

    def __init__(self, options: DeepseekOcrOptions) -> None:
        folder = local_folder("reward.options.reader", options.reader)
        # Three billion weights: keep the precision of the files, which is bfloat16.
        self._model: Any = load_judge(
            DeepseekOcr2ForConditionalGeneration, "reward.options.reader", folder, "auto"
        )
        try:
            self._processor: Any = DeepseekOcr2Processor(
                DeepseekOcr2ImageProcessorPil.from_pretrained(folder, local_files_only=True),
                AutoTokenizer.from_pretrained(folder, local_files_only=True),
            )
        except (OSError, ValueError) as error:
            raise ModelError(
                f"reward.options.reader: {folder} has no tokenizer and picture sizes that transformers can "
                f"load: {error}; download the model again, whole"
            ) from error
        self._most_tokens = options.tokens

    def move(self, device: str) -> None:
        """Read on a device from now on."""
        self._model.to(device)

    @torch.inference_mode()
    def read(self, image_HWC: np.ndarray) -> str:
        """Read a uint8 RGB image (H, W, 3) by greedy decoding, so that the text is always the same."""
        inputs = self._processor(images=[image_HWC], text=[ASKED], return_tensors="pt")
        inputs = inputs.to(self._model.device, self._model.dtype)
        tokens = self._model.generate(
            **inputs, do_sample=False, num_beams=1, max_new_tokens=self._most_tokens
        )
        written = tokens[:, inputs["input_ids"].shape[1] :]
        return str(self._processor.batch_decode(written, skip_special_tokens=True)[0]).strip()
