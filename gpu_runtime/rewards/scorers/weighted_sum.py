"""Several scorers as one: a weighted sum of their scores, which are also kept separately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_runtime.rewards.guard import judges_frames, score_each
from gpu_runtime.rewards.protocol import BatchScorer, Score, Scorer
from gpu_runtime.scheduling.scores import Term
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord


@dataclass(frozen=True)
class Part:
    """A scorer in a sum, and when it counts; otherwise it adds 0.

    Attributes:
        weight: weight, above 0.
        threshold: least value at which the part counts.
        gate: least values of other parts, by name. If parts are normalised in their prompt group, the gate
            decides which images this part compares.
        gives_verdict: False if the scorer never calls an image exact.
    """

    scorer: Scorer
    weight: float = 1.0
    threshold: float = 0.0
    gate: Mapping[str, float] = field(default_factory=dict)
    gives_verdict: bool = True


class WeightedSum(BatchScorer):
    """Scores the sum of weight times score, over the sum of weights.

    An image is exact if all parts that give a verdict call it exact. If a part fails, so does the sum: the
    rest would be a score on another scale.

    Args:
        normalised: True if parts are to be normalised in their prompt group; scores then have their terms.

    Raises:
        ConfigurationError: if there are no parts.
    """

    name = "sum"
    takes_clips = True
    """True: thresholds and gates apply to a whole clip, and each part judges a clip in its own way."""

    def __init__(self, parts: Mapping[str, Part], normalised: bool = False) -> None:
        if not parts:
            raise ConfigurationError(
                "a weighted sum of no scorers; give at least one in reward.options.parts"
            )
        self._parts = parts
        self._normalised = normalised
        self._total = sum(part.weight for part in parts.values())

    @property
    def judges_frames(self) -> bool:
        """True if some part judges a clip frame by frame."""
        return any(judges_frames(part.scorer) for part in self._parts.values())

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that one of the parts cannot judge by."""
        for part in self._parts.values():
            part.scorer.check(prompt)

    def move(self, device: str) -> None:
        """Move the parts that can work on a device to it."""
        for part in self._parts.values():
            if move := getattr(part.scorer, "move", None):
                move(device)

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Judge images by all parts, one part after the other."""
        said = {name: score_each(part.scorer, images, prompts) for name, part in self._parts.items()}
        return [self._summed({name: said[name][place] for name in said}) for place in range(len(images))]

    def _summed(self, said: Mapping[str, Score]) -> Score:
        parts = {name: score.value for name, score in said.items() if score.error is None}
        # Meaningless if a part failed, as the sum then fails.
        shut = {
            name
            for name in parts
            if any(parts.get(other, 0.0) < least for other, least in self._parts[name].gate.items())
        }
        left_out = shut | {name for name, part in parts.items() if part < self._parts[name].threshold}
        detail = "; ".join(
            f"{name} {score.value:.3f}{' (not counted)' * (name in left_out)} {score.detail}".rstrip()
            for name, score in said.items()
        )
        usd = sum(score.usd for score in said.values())
        errors = [f"{name}: {score.error}" for name, score in said.items() if score.error is not None]
        if errors:
            return Score(0.0, False, detail, error="; ".join(errors), parts=parts, usd=usd)
        counted = {name: 0.0 if name in left_out else part for name, part in parts.items()}
        value = sum(self._parts[name].weight * part for name, part in counted.items()) / self._total
        verdicts = [score.exact for name, score in said.items() if self._parts[name].gives_verdict]
        exact = bool(verdicts) and all(verdicts)
        terms = tuple(
            Term(self._parts[name].weight / self._total, None if name in shut else part)
            for name, part in counted.items()
        )
        terms = terms if self._normalised else ()
        return Score(min(value, 1.0), exact, detail, parts=parts, terms=terms, usd=usd)
