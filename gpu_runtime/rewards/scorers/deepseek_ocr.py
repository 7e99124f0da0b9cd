"""The reward for rendered text, read by DeepSeek-OCR-2 (arXiv 2601.20552) through transformers' class.

It judges as `ocr` does. It reads whole pictures, scripts and layouts that a recogniser of single lines
cannot, and needs a GPU to be quick (`runtime.scorer_gpu`), or a server that has one (scorer `remote`).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    DeepseekOcr2ForConditionalGeneration,
    DeepseekOcr2ImageProcessorPil,
    DeepseekOcr2Processor,
)

from gpu_runtime.models.files.hub_folder import local_folder
from gpu_runtime.rewards.judge_models.local_weights import load_whole
from gpu_runtime.rewards.protocol import Score, Scorer
from gpu_runtime.rewards.text_rules import normalise, ocr_reward, target_text
from storage.errors import ModelError
from storage.prompts.files import PromptRecord

ASKED = "<image>\nFree OCR."
"""The model's instruction, which it was trained to answer with the text alone."""


class DeepseekOcrScorer(Scorer):
    """A scorer by DeepSeek-OCR-2.

    Args:
        model: model that reads.
        processor: processor that resizes pictures and tokenizes texts.
        most_tokens: most tokens that are read from a picture.
    """

    name = "deepseek-ocr"

    def __init__(
        self, model: DeepseekOcr2ForConditionalGeneration, processor: DeepseekOcr2Processor, most_tokens: int
    ) -> None:
        self._model: Any = model.eval()
        self._processor: Any = processor
        self._most_tokens = most_tokens

    @classmethod
    def load(cls, name: str, most_tokens: int) -> Self:
        """Load a model from a folder, or by its name in the hub's cache.

        Raises:
            ModelError: if files are missing, or are those of another model.
        """
        folder = local_folder("reward.options.reader", name)
        # Three billion weights: keep the precision of the files, which is bfloat16.
        model = load_whole(DeepseekOcr2ForConditionalGeneration, "reward.options.reader", folder, dtype=None)
        try:
            processor = DeepseekOcr2Processor(
                DeepseekOcr2ImageProcessorPil.from_pretrained(folder, local_files_only=True),
                AutoTokenizer.from_pretrained(folder, local_files_only=True),
            )
        except (OSError, ValueError) as error:
            raise ModelError(
                f"reward.options.reader: {folder} has no tokenizer and picture sizes that transformers can "
                f"load: {error}; download the model again, whole"
            ) from error
        return cls(model, processor, most_tokens)

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

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score one image; an image with no legible text scores 0.

        Raises:
            PromptFileError: if the prompt quotes no text.
        """
        target = target_text(prompt.text)
        read = self.read(image_HWC)
        value = ocr_reward(target, normalise(" ".join(read.split())))
        return Score(value, value == 1.0, read)
