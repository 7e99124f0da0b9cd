from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gpu_runtime.embedded_tasks.glyphs import GlyphsTask
from gpu_runtime.embedded_tasks.moving_shapes import MovingShapesTask
from gpu_runtime.embedded_tasks.registry import TASKS, find_task, rendered_picture
from gpu_runtime.embedded_tasks.shapes import SIZE, TAGS, ShapesTask
from gpu_runtime.models.embedded.text_encoder import tokenize
from gpu_runtime.rewards.geneval_rules import check_shapes
from gpu_runtime.rewards.scorers.shapes import ShapesScorer
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord, load_prompts


@pytest.mark.parametrize("name", sorted(TASKS))
def test_everything_follows_from_the_generator(name: str) -> None:
    task = find_task(name)

    def draw() -> list[tuple[str, bytes]]:
        rng = np.random.default_rng(3)
        prompts = [task.draw_prompt(rng, held_out) for held_out in (False, True) * 8]
        return [(prompt.text, task.render(prompt, rng).tobytes()) for prompt in prompts]

    assert draw() == draw()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_pictures_and_prompts_fit_the_task(name: str) -> None:
    task, rng = find_task(name), np.random.default_rng(4)
    assert task.name == name
    assert task.text_length % 4 == 0
    for _ in range(200):
        prompt = task.draw_prompt(rng)
        assert len(tokenize(prompt.text)) <= task.text_length
        image_HWC = task.render(prompt, rng)
        frames = (task.frames,) if task.frames else ()
        assert image_HWC.shape == (*frames, task.height, task.width, 3)
        assert image_HWC.dtype == np.uint8


def texts(name: str) -> set[str]:
    return {re.findall(r'"(.*)"', record.text)[0] for record in load_prompts(f"builtin:{name}")}


def test_glyphs_to_evaluate_are_never_trained_on() -> None:
    evaluate = texts("glyphs-evaluate")
    assert not evaluate & texts("glyphs-train")
    task, rng = GlyphsTask(), np.random.default_rng(0)
    assert not evaluate & {task.draw_prompt(rng).text[-4:-1] for _ in range(3000)}


def test_motions_to_evaluate_are_never_trained_on() -> None:
    train, evaluate = (
        {record.text for record in load_prompts(f"builtin:moving-shapes-{use}")}
        for use in ("train", "evaluate")
    )
    assert (len(train), len(evaluate)) == (320, 96) and not train & evaluate
    task, rng = MovingShapesTask(), np.random.default_rng(0)
    drawn = {task.draw_prompt(rng).text for _ in range(4000)}
    assert train <= drawn and not evaluate & drawn


@pytest.mark.parametrize(
    ("asked", "steps", "count"),
    # Three places along an axis; a quick shape crosses the whole picture, so it has one.
    [("up left slowly", (-1, -1), 9), ("right quickly", (0, 2), 3), ("down slowly", (1, 0), 9)],
)
def test_a_shape_moves_as_asked_and_stays_inside(asked: str, steps: tuple[int, int], count: int) -> None:
    rng, prompt = np.random.default_rng(2), PromptRecord(0, f"a white square moves {asked}")
    starts = set()
    for _ in range(200):
        clip_FHWC = MovingShapesTask().render(prompt, rng)
        places = [np.argwhere((frame > 200).all(axis=-1)) for frame in clip_FHWC]
        assert {len(place) for place in places} == {SIZE * SIZE}, "nothing is cut off"
        corners = np.stack([place[0] for place in places])
        assert (np.diff(corners, axis=0) == steps).all()
        starts.add(tuple(corners[0].tolist()))
    assert len(starts) == count


def test_shapes_to_evaluate_are_apart_where_the_space_allows() -> None:
    train, evaluate = load_prompts("builtin:shapes-train"), load_prompts("builtin:shapes-evaluate")
    for tag in TAGS:
        of_train = {record.text for record in train if record.metadata["tag"] == tag}
        of_evaluate = [record.text for record in evaluate if record.metadata["tag"] == tag]
        assert len(of_evaluate) == 24
        if tag in ("colors", "position", "color_attr"):
            assert not of_train & set(of_evaluate)


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ([{"class": "dog", "count": 1}], "not any dog"),
        ([{"class": "circle", "count": 1, "color": "black"}], "not black circle"),
        ([{"class": "circle", "count": 5}], "asks for 5 objects"),
    ],
)
def test_shapes_refuses_what_it_cannot_draw(include: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ShapesTask().render(PromptRecord(0, "a photo of", {"include": include}), np.random.default_rng(0))


@pytest.mark.parametrize(
    "include",
    [
        [{"class": "circle", "count": 2}, {"class": "square", "count": 1, "position": ["above", 0]}],
        [
            {"class": "circle", "count": 2},
            {"class": "square", "count": 1},
            {"class": "cross", "count": 1, "position": ["left of", 1]},
        ],
    ],
)
def test_a_position_is_one_to_every_object_referred_to(include: list[dict[str, Any]]) -> None:
    task, rng, prompt = ShapesTask(), np.random.default_rng(0), PromptRecord(0, "p", {"include": include})
    for _ in range(50):
        image_HWC = task.render(prompt, rng)
        assert ShapesScorer().score(image_HWC, prompt).exact
        picture = rendered_picture(prompt, image_HWC)
        assert picture is not None and np.array_equal(picture.image_HWC, image_HWC)


def test_a_prompt_that_no_cells_satisfy_has_no_correct_picture() -> None:
    include: list[dict[str, Any]] = [{"class": "circle", "count": 1}]
    include += [
        {"class": name, "count": 1, "position": ["left of", place]}
        for place, name in enumerate(("square", "cross"))
    ]
    prompt = PromptRecord(0, "three shapes in a row", {"include": include})
    check_shapes(prompt)
    assert rendered_picture(prompt, np.zeros((32, 32, 3), np.uint8)) is None


@pytest.mark.parametrize("text", ["a dog", 'a pink sign that says "K7A"', 'a red sign that says "K7AB"'])
def test_glyphs_refuses_what_it_cannot_draw(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a prompt of the glyphs task"):
        GlyphsTask().render(PromptRecord(0, text), np.random.default_rng(0))


def test_unknown_task() -> None:
    with pytest.raises(
        ConfigurationError, match="'cats'; choose one of: edits, glyphs, moving-shapes, shapes"
    ):
        find_task("cats")
