"""The reward `geneval`: objects found by a detector, coloured by a classifier, judged by GenEval's rules.

What counts as found follows GenEval: a confidence above 0.3, or 0.9 where the prompt is about a number,
and at most 16 objects of a class.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_runtime.prompt_sets.geneval_words import COLOURS
from gpu_runtime.rewards.geneval_rules import ColourClassifier, Detection, ObjectDetector, check_row, judge
from gpu_runtime.rewards.protocol import Score, SupportsTo
from storage.prompts.files import PromptRecord

LEAST_CONFIDENCE = 0.3
LEAST_CONFIDENCE_COUNTING = 0.9
"""Of rows with the tag `counting`: a doubtful object would be one too many."""

MOST_OF_A_CLASS = 16
_MOST_ASKED = MOST_OF_A_CLASS
"""More objects than this no row may ask for."""


class GenEvalScorer:
    """Implements `gpu_runtime.rewards.protocol.Scorer`.

    `exact` is GenEval's official verdict; `value` is the strict score that is trained on.

    Args:
        detector: finds the objects.
        classifier: is asked for colours only where the row asks for one.
    """

    name = "geneval"

    def __init__(self, detector: ObjectDetector, classifier: ColourClassifier) -> None:
        self._detector = detector
        self._classifier = classifier

    def move(self, device: str) -> None:
        """Judge on that device from now on, where the two can."""
        for model in (self._detector, self._classifier):
            if isinstance(model, SupportsTo):
                model.move(device)

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a row that names what the detector or the classifier does not know.

        Raises:
            PromptFileError: see `check_row`.
        """
        check_row(prompt, sorted(self._detector.class_names), COLOURS, _MOST_ASKED)

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its GenEval row.

        Raises:
            PromptFileError: the prompt has no row.
        """
        counting = prompt.metadata.get("tag") == "counting"
        least = LEAST_CONFIDENCE_COUNTING if counting else LEAST_CONFIDENCE
        found = most_confident(self._detector.detect(image_HWC, least), least)
        return judge(self._coloured(image_HWC, found, prompt), prompt)

    def _coloured(
        self, image_HWC: np.ndarray, found: Sequence[Detection], prompt: PromptRecord
    ) -> list[Detection]:
        """The objects, the most confident first; those that a colour is asked of with theirs.

        Only as many of a class as the row asks for are judged by their colour, so no more are looked at.
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
    """Those above `least`, the most confident first, at most `MOST_OF_A_CLASS` of each class."""
    kept: list[Detection] = []
    of_class: defaultdict[str, int] = defaultdict(int)
    for item in sorted(found, key=lambda item: -item.confidence):
        if item.confidence > least and of_class[item.class_name] < MOST_OF_A_CLASS:
            of_class[item.class_name] += 1
            kept.append(item)
    return kept
