"""Judges text read from an image against the text that its prompt quotes.

The definition is Flow-GRPO's (arXiv 2505.05470, section 5): one minus the edit distance over the
target's length, or 1 if the target is a substring of the text read.
"""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod

import numpy as np

from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.scheduling.scores import Score
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord

_QUOTED = re.compile(r'"([^"]*)"')

_LOOK_ALIKE = str.maketrans("αβεζηικμνορςτυχ", "abezhikmnopστyx")
"""Greek letters whose capitals look like Latin ones, so that an engine reads either; also the final sigma."""


def target_text(prompt: str) -> str:
    """Return the text in the prompt's first double quotes, normalised for comparison.

    Raises:
        PromptFileError: if the prompt quotes nothing.
    """
    match = _QUOTED.search(prompt)
    target = normalise(match.group(1)) if match else ""
    if not target:
        raise PromptFileError(
            f'prompt {prompt!r} has no text in double quotes; the ocr reward needs it, as in: a sign "OPEN"'
        )
    return target


def normalise(text: str) -> str:
    """Lower-case and drop white space and invisible characters, for both sides of the comparison.

    Accents are composed, and wide or joined letters become the plain ones (NFKC): `CAFÉ` compares the same,
    however a prompt's file encodes it. Letters that look alike in Greek and Latin become the Latin ones.
    """
    lower = unicodedata.normalize("NFKC", text).lower().translate(_LOOK_ALIKE)
    folded = unicodedata.normalize("NFKC", lower)
    return "".join(
        letter
        for letter in folded
        if not letter.isspace() and unicodedata.category(letter) not in ("Cc", "Cf")
    )


def ocr_reward(target: str, read: str) -> float:
    """Return the reward in [0, 1], from two normalised texts; `target` is not empty.

    1 if `target` is a substring of `read`, else 1 - min(edit distance, len(target)) / len(target).
    """
    # Imported here: checks of prompts need only the target.
    from rapidfuzz.distance import Levenshtein

    if target in read:
        return 1.0
    return 1.0 - min(Levenshtein.distance(read, target), len(target)) / len(target)


class TextScorer(Scorer):
    """A scorer that judges the text in an image."""

    @abstractmethod
    def read(self, image_HWC: np.ndarray) -> str:
        """Read a uint8 RGB image of shape (H, W, 3); return an empty string if nothing is legible."""

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score one image; an image with no legible text scores 0.

        Raises:
            PromptFileError: if the prompt quotes no text.
        """
        target = target_text(prompt.text)
        read = self.read(image_HWC)
        value = ocr_reward(target, normalise(read))
        return Score(value, value == 1.0, read)
