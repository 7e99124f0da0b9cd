"""The score of an image, as scorers return it and everything else uses it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Term(NamedTuple):
    """A part's term in a sum: its weight (all sum to 1) and its counted value, in [0, 1].

    The value is None if the part's gate is closed: that part does not compare the image at all.
    """

    weight: float
    value: float | None


@dataclass(frozen=True)
class Score:
    """The judgement of one image.

    Attributes:
        value: reward, in [0, 1].
        exact: True if the image satisfies its whole prompt; the reported measure.
        detail: text read or objects detected, for people.
        error: reason why there is no judgement, or None. With an error, `value` is 0 and meaningless.
        parts: value by each scorer of a weighted sum, by name; empty for any other scorer.
        terms: terms of a sum whose parts are normalised in their prompt group before they are added; the
            same number for all images. Empty if `value` is learned from.
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


def judged(scores: Sequence[Score]) -> list[Score]:
    """Return the scores without an error, the only ones in means."""
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
