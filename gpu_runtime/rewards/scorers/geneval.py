"""The reward `geneval`: objects found by a detector, coloured by a classifier, judged by GenEval's rules.

An object counts as found by GenEval's rules: a confidence above 0.3, or 0.9 if the prompt is about a
number, and at most 16 objects of a class.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from gpu_runtime.prompt_sets.geneval import COLOURS
from gpu_runtime.rewards.geneval_rules import Detection, check_row, judge
from gpu_runtime.rewards.options import GenEvalOptions
from gpu_runtime.rewards.protocol import Score, Scorer
from storage.prompts.files import PromptRecord

if TYPE_CHECKING:  # the rules need no torch
    from gpu_runtime.rewards.judge_models.clip import ClipColours
    from gpu_runtime.rewards.judge_models.mask2former import Mask2FormerDetector

LEAST_CONFIDENCE = 0.3
LEAST_CONFIDENCE_COUNTING = 0.9
"""Least confidence for rows with the tag `counting`: a doubtful object would be one too many."""

MOST_OF_A_CLASS = 16
"""Most objects of a class that count, and most objects that a row may ask for."""


class GenEvalScorer(Scorer):
    """A scorer by GenEval's rules.

    `exact` is GenEval's official verdict; `value` is the strict score that is trained on.

    Args:
        classifier: classifier of colours, used only where the row asks for one.
    """

    name = "geneval"

    def __init__(self, detector: Mask2FormerDetector, classifier: ClipColours) -> None:
        self._detector = detector
        self._classifier = classifier

    @classmethod
    def load(cls, options: GenEvalOptions) -> Self:
        """Load both models.

        Raises:
            ModelError: if files are missing, or one does not fit.
        """
        from gpu_runtime.rewards.judge_models.clip import Clip, ClipColours
        from gpu_runtime.rewards.judge_models.mask2former import Mask2FormerDetector

        colours = ClipColours(Clip.load("reward.options.clip", options.clip))
        return cls(Mask2FormerDetector.load(options.detector), colours)

    def move(self, device: str) -> None:
        """Judge on a device from now on."""
        self._detector.move(device)
        self._classifier.move(device)

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a row with a name that the detector or the classifier does not know."""
        check_row(prompt, sorted(self._detector.class_names), COLOURS, MOST_OF_A_CLASS)

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its GenEval row.

        Raises:
            PromptFileError: if the prompt has no row.
        """
        counting = prompt.metadata.get("tag") == "counting"
        least = LEAST_CONFIDENCE_COUNTING if counting else LEAST_CONFIDENCE
        found = most_confident(self._detector.detect(image_HWC, least), least)
        return judge(self._coloured(image_HWC, found, prompt), prompt)

    def _coloured(
        self, image_HWC: np.ndarray, found: Sequence[Detection], prompt: PromptRecord
    ) -> list[Detection]:
        """Return the objects, the most confident first, with colours where the row asks for one.

        Colour counts only for as many objects of a class as the row asks for, so no more are classified.
        """
        asked: Counter[str] = Counter()
        for item in prompt.metadata.get("include", []):
            if "color" in item:
                asked[item["class"]] = max(asked[item["class"]], item["count"])
        wanted = []
        for place, item in enumerate(found):
            if asked[item.class_name] > 0:
                asked[item.class_name] -= 1
                wanted.append(place)
        coloured = list(found)
        if wanted:
            colours = self._classifier.colours_of(image_HWC, [found[place] for place in wanted])
            for place, colour in zip(wanted, colours, strict=True):
                coloured[place] = replace(found[place], colour=colour)
        return coloured


def most_confident(found: Sequence[Detection], least: float) -> list[Detection]:
    """Return objects above `least`, the most confident first, at most `MOST_OF_A_CLASS` per class."""
    kept: list[Detection] = []
    of_class: defaultdict[str, int] = defaultdict(int)
    for item in sorted(found, key=lambda item: -item.confidence):
        if item.confidence > least and of_class[item.class_name] < MOST_OF_A_CLASS:
            of_class[item.class_name] += 1
            kept.append(item)
    return kept
