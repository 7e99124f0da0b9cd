"""What a scorer is: one image and its prompt in, one score out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from storage.prompts.files import PromptRecord

CALL_LIMIT_S = 1800.0
"""Seconds that a scorer may take for one call before it counts as hung, and is killed."""

MOST_IMAGES_A_CALL = 16
"""Images that a scorer is given at once."""


class Term(NamedTuple):
    """What a part adds to a sum: its weight (all sum to 1), and its value as far as it counts, in [0, 1].

    The value is None where the part's gate is closed: the image is not compared by that part at all.
    """

    weight: float
    value: float | None


@dataclass(frozen=True)
class Score:
    """The judgement of one image.

    Attributes:
        value: the reward, in [0, 1].
        exact: whether the image does all that its prompt asks; the measure that is reported.
        detail: what was read or detected, for people.
        error: why there is no judgement; None when there is one. `value` is then 0, and of no meaning.
        parts: what each scorer of a weighted sum says, by name; empty for any other.
        terms: of a sum whose parts are to be normalised in their prompt group before they are added; the
            same number for all images. Empty where `value` is what is learned from.
        usd: what was paid for the judgement, or for the attempt at one, in dollars.
        judge: what the second judge says of a held-out image; None where there is none.
    """

    value: float
    exact: bool
    detail: str
    error: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    usd: float = 0.0
    judge: Score | None = None


class Scorer(Protocol):
    """Judges one image at a time, so that a score never depends on the image's neighbours."""

    name: str

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that no image could be judged by; cheap, as it is asked of every prompt of a run.

        Raises:
            PromptFileError, ConfigurationError: the value, what it may be and what to do.
        """
        ...

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; may raise anything."""
        ...


@runtime_checkable
class BatchScorer(Protocol):
    """A scorer that does better with several images at once, as one that waits for a server does.

    No score may depend on the other images all the same.
    """

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """One score an image, in order; one that failed has an `error`. May raise anything."""
        ...


@runtime_checkable
class SupportsTo(Protocol):
    """A scorer, or a part of one, whose model can leave the CPU, where it was loaded."""

    def move(self, device: str) -> None:
        """Work on that device from now on, by torch's name of it."""
        ...


def judged(scores: Sequence[Score]) -> list[Score]:
    """Those that are judgements; means are taken over them alone."""
    return [score for score in scores if score.error is None]


def part_means(scores: Sequence[Score]) -> dict[str, float]:
    """The mean of each part of a weighted sum over the judged images; empty for other scorers."""
    judgements = judged(scores)
    names = dict.fromkeys(name for score in judgements for name in score.parts)
    return {name: statistics.fmean(score.parts[name] for score in judgements) for name in names}


def part_figures(score: Score) -> dict[str, float]:
    """What there is beside a score, as figures of its image: `part_NAME` of a weighted sum, and `judge`.

    An image that the second judge failed on has no such figure.
    """
    judge = score.judge
    second = {} if judge is None or judge.error is not None else {"judge": judge.value}
    return {f"part_{name}": value for name, value in score.parts.items()} | second
