"""Several scorers as one: their scores weighed, and kept apart beside the sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import Score, Scorer, SupportsTo
from storage.errors import ConfigurationError, RewardError
from storage.prompts.files import PromptRecord


class WeightedSum:
    """Implements `Scorer` and `BatchScorer`: sum of weight times score, over the sum of weights.

    An image is exact where all parts that give a verdict call it exact. Where a part fails, so does the sum:
    the rest would be a score of another scale.

    Args:
        parts: scorers by their name, with their weights above 0.
        grading_only: names of those that call no image exact, ever.

    Raises:
        ConfigurationError: there are none.
    """

    name = "sum"

    def __init__(
        self, parts: Mapping[str, tuple[Scorer, float]], grading_only: Collection[str] = frozenset()
    ) -> None:
        if not parts:
            raise ConfigurationError(
                "a weighted sum of no scorers; give at least one in reward.options.parts"
            )
        self._grading_only = frozenset(grading_only)
        self._parts = parts
        self._total = sum(weight for _, weight in parts.values())

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that one of the parts cannot judge by.

        Raises:
            PromptFileError, ConfigurationError: as that part says.
        """
        for scorer, _ in self._parts.values():
            scorer.check(prompt)

    def move(self, device: str) -> None:
        """Let the parts that can judge on that device do so."""
        for scorer, _ in self._parts.values():
            if isinstance(scorer, SupportsTo):
                scorer.move(device)

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) by all parts.

        Raises:
            RewardError: a part fails.
        """
        (score,) = self.score_batch([image_HWC], [prompt])
        if score.error is not None:
            raise RewardError(score.error)
        return score

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Judge images by all parts, one part after the other."""
        said = {name: score_each(scorer, images, prompts) for name, (scorer, _) in self._parts.items()}
        return [self._summed({name: said[name][place] for name in said}) for place in range(len(images))]

    def _summed(self, said: Mapping[str, Score]) -> Score:
        detail = "; ".join(
            f"{name} {score.value:.3f} {score.detail}".rstrip() for name, score in said.items()
        )
        parts = {name: score.value for name, score in said.items() if score.error is None}
        errors = [f"{name}: {score.error}" for name, score in said.items() if score.error is not None]
        if errors:
            return Score(0.0, False, detail, error="; ".join(errors), parts=parts)
        value = sum(self._parts[name][1] * part for name, part in parts.items()) / self._total
        verdicts = [score.exact for name, score in said.items() if name not in self._grading_only]
        return Score(min(value, 1.0), bool(verdicts) and all(verdicts), detail, parts=parts)
