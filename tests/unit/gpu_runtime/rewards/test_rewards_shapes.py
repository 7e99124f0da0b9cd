from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_runtime.embedded_tasks.shapes import BACKGROUND, COLOURS, SIZE, TAGS, ShapesTask, coverage
from gpu_runtime.rewards.geneval_rules import Detection, check_shapes, judge, relations
from gpu_runtime.rewards.scorers.shapes import ShapesScorer, detect
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord, load_prompts

Object = tuple[str, str, int, int]  # class, colour, top, left


def draw(*objects: Object) -> np.ndarray:
    image_HWC = np.full((32, 32, 3), BACKGROUND, np.float32)
    for name, colour, top, left in objects:
        box = image_HWC[top : top + SIZE, left : left + SIZE]
        box += coverage(name)[..., None] * (np.array(COLOURS[colour], np.float32) - box)
    return image_HWC.round().astype(np.uint8)


def row(include: list[dict[str, Any]], exclude: list[dict[str, Any]] | None = None) -> PromptRecord:
    return PromptRecord(
        0, "a photo of", {"include": include, "exclude": exclude or [], "prompt": "a photo of"}
    )


CIRCLE, SQUARE = {"class": "circle", "count": 1}, {"class": "square", "count": 1}
TWO = row([{"class": "circle", "count": 2}], [{"class": "circle", "count": 3}])
RED_CIRCLE = row([CIRCLE | {"color": "red"}])
BOTH = row([CIRCLE, SQUARE])
LEFT = row([SQUARE, CIRCLE | {"position": ["left of", 0]}])
PAIR = row([CIRCLE | {"color": "red"}, SQUARE | {"color": "blue"}])
A, B, C = (3, 3), (3, 19), (19, 3)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (PromptRecord(0, "two circles"), "has no `include`; this reward needs GenEval rows"),
        (row([{"class": "dog", "count": 1}]), "`class` 'dog'; this reward knows circle, square"),
        (row([CIRCLE | {"color": "black"}]), "`color` 'black'; this reward knows red, yellow"),
        (row([SQUARE, CIRCLE | {"position": ["near", 0]}]), "`position` 'near'; this reward knows left of"),
        (row([CIRCLE], [{"class": "cat", "count": 1}]), "`class` 'cat'"),
        (row([CIRCLE | {"count": 3}, SQUARE | {"count": 2}]), "asks for 5 objects; .* room for 4: lower"),
        (
            row([CIRCLE | {"count": 2}], [CIRCLE | {"count": 2}]),
            "asks for 2 circle and excludes 2; .* 3 or more",
        ),
    ],
)
def test_rows_that_nothing_can_fulfil_are_refused(prompt: PromptRecord, says: str) -> None:
    with pytest.raises(PromptFileError, match=says):
        check_shapes(prompt)


@pytest.mark.parametrize("tag", TAGS)
def test_what_the_task_draws_is_right(tag: str) -> None:
    task, scorer, rng = ShapesTask(), ShapesScorer(), np.random.default_rng(5)
    for held_out in (False, True):
        for _ in range(40):
            prompt = task.draw_prompt(rng, held_out, tag)
            score = scorer.score(task.render(prompt, rng), prompt)
            assert (score.value, score.exact) == (1.0, True), (prompt.text, score.detail)


def test_detector_on_every_built_in_prompt() -> None:
    task, scorer, rng = ShapesTask(), ShapesScorer(), np.random.default_rng(6)
    prompts = load_prompts("builtin:shapes-evaluate") + load_prompts("builtin:shapes-train")
    for prompt in prompts:
        check_shapes(prompt)
    hits = [scorer.score(task.render(prompt, rng), prompt).exact for prompt in prompts]
    assert np.mean(hits) >= 0.98


@pytest.mark.parametrize(
    ("prompt", "objects", "value", "exact"),
    [
        (row([CIRCLE]), [("square", "red", *A)], 0.0, False),  # wrong class
        (row([CIRCLE]), [], 0.0, False),
        (row([CIRCLE]), [("circle", "red", *A), ("circle", "red", *B)], 0.0, True),  # GenEval forgives
        (TWO, [("circle", "red", *A)], 0.5, False),
        (TWO, [("circle", "red", *A), ("circle", "red", *B), ("circle", "red", *C)], 0.5, False),  # excluded
        (RED_CIRCLE, [("circle", "blue", *A)], 0.5, False),  # count right, colour wrong
        (RED_CIRCLE, [("square", "red", *A)], 0.0, False),
        (BOTH, [("circle", "red", *A)], 0.5, False),
        (LEFT, [("circle", "red", *B), ("square", "red", *A)], 2 / 3, False),  # it stands right of it
        (LEFT, [("circle", "red", *A), ("square", "red", *C)], 2 / 3, False),  # it stands above it
        (LEFT, [("circle", "red", *A)], 1 / 3, False),  # nothing to stand left of
        (LEFT, [("circle", "red", *A), ("square", "red", *B)], 1.0, True),
        (PAIR, [("circle", "blue", *A), ("square", "red", *B)], 0.5, False),  # colours swapped
        (PAIR, [("circle", "red", *A), ("square", "red", *B)], 0.75, False),
        (PAIR, [("circle", "red", *A), ("square", "blue", *C)], 1.0, True),
    ],
)
def test_one_fault_each(prompt: PromptRecord, objects: list[Object], value: float, exact: bool) -> None:
    score = ShapesScorer().score(draw(*objects), prompt)
    assert score.value == pytest.approx(value)
    assert score.exact is exact


def test_detections_have_class_colour_and_box() -> None:
    found = {
        item.class_name: item for item in detect(draw(("cross", "pink", 2, 20), ("triangle", "white", 18, 4)))
    }
    assert {name: item.colour for name, item in found.items()} == {"cross": "pink", "triangle": "white"}
    assert found["cross"].box == pytest.approx((20, 2, 30, 12), abs=1.0)


def test_specks_and_noise_are_no_objects() -> None:
    speck = draw()
    speck[5:8, 5:8] = 255
    assert detect(speck) == []
    assert detect(np.zeros((32, 32, 3), np.uint8)) == []
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    assert len(detect(noise)) <= 1


BOX = (10.0, 10.0, 20.0, 20.0)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((30.0, 10.0, 40.0, 20.0), {"left of"}),
        ((-10.0, 10.0, 0.0, 20.0), {"right of"}),
        ((10.0, 30.0, 20.0, 40.0), {"above"}),
        ((10.0, -10.0, 20.0, 0.0), {"below"}),
        ((26.0, 26.0, 36.0, 36.0), {"left of", "above"}),  # (16 - 2) / 22.6 = 0.62
        ((15.0, 15.0, 25.0, 25.0), set()),  # (5 - 2) / 7.07 = 0.42
        ((11.0, 10.0, 21.0, 20.0), set()),  # within the dead zone of 0.1 * (10 + 10)
        (BOX, set()),
    ],
)
def test_relations_by_hand(other: tuple[float, ...], expected: set[str]) -> None:
    assert relations(BOX, other) == expected


def test_many_extra_objects_never_go_below_zero() -> None:
    many = [Detection("circle", "red", BOX, 0.9)] * 16  # the public code gives -14
    assert judge(many, row([CIRCLE])).value == 0.0


def test_the_most_confident_objects_are_judged() -> None:
    found = [Detection("circle", "blue", BOX, 0.8), Detection("circle", "red", BOX, 0.9)]
    assert judge(found, RED_CIRCLE).exact
    assert judge(found, RED_CIRCLE).value == pytest.approx(0.5)  # one too many, colour right
