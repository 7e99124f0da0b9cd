"""The reward `moving-shapes`: what counts in a clip, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_runtime.embedded_tasks.moving_shapes import FRAMES, SIDE, MovingShapesTask, motion_of
from gpu_runtime.embedded_tasks.shapes import BACKGROUND, SIZE, patch
from gpu_runtime.rewards.motion_rules import judge_motion
from gpu_runtime.rewards.scorers.shapes import MovingShapesScorer, detect
from gpu_runtime.rewards.scorers.templates import find_shapes
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_config
from storage.errors import ConfigurationError, PromptFileError, RewardError
from storage.prompts.files import PromptRecord
from tasks.checks.preflight import check

ASKED = PromptRecord(0, "a red square moves right slowly")
Place = tuple[int, int]
"""Top and left of a shape."""


def clip_of(*frames: list[Place], name: str = "square", colour: str = "red") -> np.ndarray:
    clip_FHWC = np.full((len(frames), SIDE, SIDE, 3), BACKGROUND, np.uint8)
    for frame_HWC, places in zip(clip_FHWC, frames, strict=True):
        for top, left in places:
            frame_HWC[top : top + SIZE, left : left + SIZE] = patch(name, colour).round()
    return clip_FHWC


def along(*lefts: int) -> list[list[Place]]:
    return [[(7, left)] for left in lefts]


def judged(clip_FHWC: np.ndarray) -> Score:
    """The judgement by contours, which templates share."""
    score = MovingShapesScorer().score(clip_FHWC, ASKED)
    other = judge_motion(clip_FHWC, ASKED, find_shapes)
    assert other.exact == score.exact and other.value == pytest.approx(score.value, abs=0.01)
    return score


def test_every_drawing_of_the_task_is_exact():
    task, rng = MovingShapesTask(), np.random.default_rng(1)
    for _ in range(60):
        prompt = task.draw_prompt(rng)
        score = MovingShapesScorer().score(task.render(prompt, rng), prompt)
        assert score.exact and score.value > 0.99, (prompt.text, score)


def test_a_correct_clip_tells_what_was_seen():
    score = judged(clip_of(*along(*range(2, 10))))
    assert score.exact and score.value == pytest.approx(1.0, abs=0.01)
    assert score.detail == "red square; (7, 12) to (14, 12)"


@pytest.mark.parametrize(
    ("lefts", "off"),
    [
        # The path of the mean start: a shape that stands still is off by its distance from the middle frame.
        ([6] * 8, [3.5, 2.5, 1.5, 0.5, 0.5, 1.5, 2.5, 3.5]),
        ([0, 2, 4, 6, 8, 10, 12, 14], [3.5, 2.5, 1.5, 0.5, 0.5, 1.5, 2.5, 3.5]),
        ([10, 9, 8, 7, 6, 5, 4, 3], [7, 5, 3, 1, 1, 3, 5, 7]),
        # One frame jumps by four pixels: it is off by 3.5, and moves the path of the others by half a pixel.
        ([0, 1, 2, 3, 8, 5, 6, 7], [0.5, 0.5, 0.5, 0.5, 3.5, 0.5, 0.5, 0.5]),
    ],
    ids=["still", "twice as quick", "backwards", "a jump"],
)
def test_a_path_counts_by_its_distance_from_the_one_asked_for(lefts: list[int], off: list[float]):
    score = judged(clip_of(*along(*lefts)))
    assert not score.exact
    graded = np.mean([(3 + max(0, 1 - pixels / 4)) / 4 for pixels in off])
    assert score.value == pytest.approx(graded / 2, abs=0.01)


def test_half_a_pixel_off_is_exact_and_costs_an_eighth_of_the_place():
    score = judged(clip_of(*along(0, 2, 2, 4, 4, 6, 6, 8)))  # off by half a pixel each, in turns
    assert score.exact and score.value == pytest.approx((1 + (3 + 1 - 0.5 / 4) / 4) / 2, abs=0.01)


@pytest.mark.parametrize(
    ("name", "colour", "graded"), [("square", "blue", 0.75), ("cross", "red", 0.75), ("cross", "blue", 0.5)]
)
def test_another_look_loses_its_component(name: str, colour: str, graded: float):
    score = judged(clip_of(*along(*range(8)), name=name, colour=colour))
    assert score.value == pytest.approx(graded / 2, abs=0.01) and not score.exact
    assert score.detail.startswith(f"{colour} {name}; ")


def test_a_second_shape_and_a_missing_one_count_in_their_frame_alone():
    frames = along(*range(8))
    twice = judged(clip_of([(0, 0), (12, 0)], *frames[1:]))
    assert not twice.exact and twice.value < (1 - 1 / 4 / FRAMES) / 2
    gone = judged(clip_of(*frames[:5], [], *frames[6:]))
    assert gone.value == pytest.approx(7 / 8 / 2, abs=0.01) and not gone.exact
    assert judged(clip_of(*[[]] * 8)) == Score(0.0, False, "nothing")


def test_other_prompts_and_missing_frames_are_refused_before_a_run():
    for text in ("a red square moves", "a black square moves up slowly", "a red square moves left up slowly"):
        with pytest.raises(PromptFileError, match="not a prompt of the task moving-shapes"):
            motion_of(PromptRecord(0, text))
    with pytest.raises(RewardError, match="all 8 frames"):
        judge_motion(clip_of(*along(0, 1, 2)), ASKED, detect)
    with pytest.raises(ConfigurationError, match=r"with reward\.frames=all"):
        check(load_config("moving-shapes", ["reward.frames=first,middle,last"], {}))
