"""The interface of scorers: one image and its prompt in, one score out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from storage.errors import RewardError
from storage.prompts.files import PromptRecord

CALL_LIMIT_S = 1800.0
"""Seconds that a scorer may take for one call before it counts as hung, and is killed."""

MOST_IMAGES_A_CALL = 16
"""Most images that a scorer is given at once."""


class Term(NamedTuple):
    """A part's term in a sum: its weight (all sum to 1), and its value as far as it counts, in [0, 1].

    The value is None if the part's gate is closed: that part does not compare the image at all.
    """

    weight: float
    value: float | None


@dataclass(frozen=True)
class Score:
    """The judgement of one image.

    Attributes:
        value: reward, in [0, 1].
        exact: True if the image does all that its prompt asks; the measure that is reported.
        detail: text read or objects detected, for people.
        error: reason why there is no judgement, or None. With an error, `value` is 0 and means nothing.
        parts: value by each scorer of a weighted sum, by name; empty for any other scorer.
        terms: terms of a sum whose parts are to be normalised in their prompt group before they are added;
            the same number for all images. Empty where `value` is learned from.
        usd: price of the judgement, or of the attempt at one, in dollars.
        judge: score by the second judge for a held-out image; None without one.
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
    """A judge of one image at a time, so that a score never depends on the image's neighbours.

    A subclass inherits what it does not define; a class with the same methods needs no base class.

    One with an attribute `takes_clips` that is true gets the chosen frames of a clip at once, uint8 of shape
    (F, H, W, 3), where it would get an image. Any other one gets them one by one, and the mean counts.
    """

    name: str

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that only the loaded scorer can tell to be impossible to judge by.

        It is cheap, as every prompt of a run is checked; the plug-in's `check_prompt` comes before it. Most
        scorers accept every prompt here.

        Raises:
            PromptFileError, ConfigurationError: if so; with the value, its limits and what to do.
        """

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; may raise anything."""
        ...


@runtime_checkable
class BatchScorer(Scorer, Protocol):
    """A scorer that is faster with several images at once, such as one that waits for a server.

    Even so, no score may depend on the other images.
    """

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Return one score per image, in order; one that failed has an `error`. May raise anything."""
        ...

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge one image, as a batch of one.

        Raises:
            RewardError: if its score has an error.
        """
        (score,) = self.score_batch([image_HWC], [prompt])
        if score.error is not None:
            raise RewardError(score.error.removeprefix("RewardError: "))
        return score


@runtime_checkable
class SupportsTo(Protocol):
    """A scorer, or a part of one, whose model is loaded on the CPU and can be moved."""

    def move(self, device: str) -> None:
        """Work on a device from now on, given by torch's name of it."""
        ...


def judged(scores: Sequence[Score]) -> list[Score]:
    """Return the scores without an error; means are taken over them alone."""
    return [score for score in scores if score.error is None]


def part_means(scores: Sequence[Score]) -> dict[str, float]:
    """Return the mean of each part of a weighted sum over the judged images; empty for other scorers."""
    judgements = judged(scores)
    names = dict.fromkeys(name for score in judgements for name in score.parts)
    return {name: statistics.fmean(score.parts[name] for score in judgements) for name in names}


def part_figures(score: Score) -> dict[str, float]:
    """Return an image's figures beside its score: `part_NAME` of a weighted sum, and `judge`.

    An image that the second judge failed on has no such figure.
    """
    judge = score.judge
    second = {} if judge is None or judge.error is not None else {"judge": judge.value}
    return {f"part_{name}": value for name, value in score.parts.items()} | second
