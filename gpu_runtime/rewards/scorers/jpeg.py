"""The reward for pictures that compress well: how much smaller the JPEG file is than the pixels.

The "compressibility" of DDPO (arXiv 2305.13301), relative to the picture's size, so that resolutions can be
compared. It needs no model and reads no prompt: a good first reward to try a model family with.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from gpu_runtime.rewards.protocol import Score, Scorer
from storage.prompts.files import PromptRecord

QUALITY = 95


class JpegScorer(Scorer):
    """Scores 1 - the file's bytes / the raw pixels' bytes, within [0, 1]; about 0.8 for a photograph."""

    name = "jpeg"

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3); the prompt is ignored, and it is never exact."""
        file = io.BytesIO()
        Image.fromarray(image_HWC).save(file, format="JPEG", quality=QUALITY)
        size_bytes = file.tell()
        return Score(max(0.0, 1.0 - size_bytes / image_HWC.size), False, f"{size_bytes} bytes")
