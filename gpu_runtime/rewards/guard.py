"""Guarded scoring: one bad image costs one score, and a scorer that always fails stops the run."""

from __future__ import annotations

import statistics
import traceback
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_runtime.rewards.protocol import BatchScorer, Scorer
from gpu_runtime.scheduling.scores import Score, Term, part_means
from storage.errors import RewardError, SpotlightError, shortened
from storage.pictures import frames_of, is_clip
from storage.prompts.files import PromptRecord

_FUNCTION = "rewards/scorers/function.py"
"""File that calls a reward that is a plain function; the error's line is taken from the function's file."""


def score_each(scorer: Scorer, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
    """Score each image against its own prompt: one at a time, or all at once by a `BatchScorer`.

    Args:
        images: uint8 RGB images of shape (H, W, 3), or clips (F, H, W, 3), whose frames are judged; an array
            of shape (B, H, W, 3) will do.
        prompts: as many prompts, in the same order.

    Returns:
        One score per image, in order. An image that the scorer failed on has value 0 and an `error`.

    Raises:
        RewardError: if the lengths differ.
    """
    if len(images) != len(prompts):
        raise RewardError(f"{len(images)} images but {len(prompts)} prompts; each image needs its own prompt")
    if any(map(is_clip, images)) and not getattr(scorer, "takes_clips", False):
        clips = [frames_of(image) for image in images]
        frames = [frame for clip in clips for frame in clip]
        asked = [prompt for clip, prompt in zip(clips, prompts, strict=True) for _ in clip]
        of_frames = iter(score_each(scorer, frames, asked))
        return [_mean([next(of_frames) for _ in clip]) for clip in clips]
    # A scorer is third-party code over arbitrary pixels: it may raise anything, and one image
    # must not end a run that is being paid for. The error is kept in the score, not hidden.
    if isinstance(scorer, BatchScorer):
        try:
            scores = [_checked(score) for score in scorer.score_batch(images, prompts)]
            if len(scores) != len(images):
                raise RewardError(f"{len(scores)} scores came back for {len(images)} images")
        except Exception as error:  # noqa: BLE001
            return [_failed(error)] * len(images)
        return scores
    scores = []
    for image_HWC, prompt in zip(images, prompts, strict=True):
        try:
            scores.append(_checked(scorer.score(image_HWC, prompt)))
        except Exception as error:  # noqa: BLE001
            scores.append(_failed(error))
    return scores


def judges_frames(scorer: Scorer) -> bool:
    """Return True if a scorer, or a part of it, judges the frames of a clip one by one."""
    return not getattr(scorer, "takes_clips", False) or getattr(scorer, "judges_frames", False)


def refuse_total_failure(name: str, scores: Sequence[Score]) -> None:
    """Refuse scores if the scorer failed on every image.

    Raises:
        RewardError: if so, with the first error and the next thing to do.
    """
    errors = [score.error for score in scores if score.error is not None]
    if errors and len(errors) == len(scores):
        raise RewardError(
            f"scorer {name!r} failed on all {len(scores)} images; the first error was: {errors[0]}. There is "
            "nothing to learn from: fix the scorer, its dependencies or its prompts' format"
        )


def _mean(frames: Sequence[Score]) -> Score:
    """Return the score of a clip: exact if all its frames are, with an error if one has an error."""
    usd, terms = sum(score.usd for score in frames), []
    for place, score in enumerate(frames):
        if score.error is not None:
            return Score(0.0, False, "", error=f"frame {place} of those judged: {score.error}", usd=usd)
    for of_part in zip(*(score.terms for score in frames), strict=True):
        # Average over the frames that the part compares.
        values = [term.value for term in of_part if term.value is not None]
        terms.append(Term(of_part[0].weight, statistics.fmean(values) if values else None))
    return Score(
        statistics.fmean(score.value for score in frames),
        all(score.exact for score in frames),
        shortened(" | ".join(dict.fromkeys(score.detail for score in frames))),
        parts=part_means(frames),
        terms=tuple(terms),
        usd=usd,
    )


def _checked(score: Score) -> Score:
    """Return the score, or one with an error if it has one or is not a valid score."""
    value, error = float(score.value), score.error
    if error is None and not 0.0 <= value <= 1.0:  # false for a NaN
        error = f"score {value} is not in [0, 1]"
    return score if error is None else replace(score, value=0.0, exact=False, error=error)


def _failed(error: Exception) -> Score:
    """Return a score with an error that names the line of the scorer's file that raised, or led to it."""
    where = ""
    if not isinstance(error, SpotlightError):  # its message already says what to do
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is this file's
        if frames and frames[0].filename.endswith(_FUNCTION):
            frames = [frame for frame in frames if not frame.filename.endswith(_FUNCTION)]
        own = [frame for frame in frames if frame.filename == frames[0].filename]
        where = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
    return Score(0.0, False, "", error=f"{type(error).__name__}: {error}{where}")
