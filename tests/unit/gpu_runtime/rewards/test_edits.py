"""The embedded editing task: sources, true pictures, and the rules that judge an edit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_runtime.embedded_tasks.edits import TAGS, Edit, EditsTask, edit_of
from gpu_runtime.embedded_tasks.shapes import BACKGROUND, COLOURS, SIZE, patch
from gpu_runtime.rewards.edit_rules import TOLERANCE, edited_region, judge_edit
from gpu_runtime.rewards.protocol import Scorer
from gpu_runtime.rewards.registry import SCORERS
from gpu_runtime.rewards.scorers.shapes import EditsScorer, detect
from gpu_runtime.rewards.scorers.templates import TemplatesScorer
from gpu_runtime.scheduling.scores import Score
from storage.errors import PromptFileError, RewardError
from storage.prompts.files import PromptRecord, load_prompts
from storage.prompts.sources import as_data_uri, read_source

TASK = EditsTask()
CIRCLE, SQUARE, CROSS = (3, 3), (19, 4), (3, 19)
"""Left and top of the shapes of the source that the tests judge by hand."""


def drawn(*shapes: tuple[str, str, tuple[int, int]]) -> np.ndarray:
    image_HWC = np.full((32, 32, 3), BACKGROUND, np.uint8)
    for name, colour, (left, top) in shapes:
        image_HWC[top : top + SIZE, left : left + SIZE] = patch(name, colour).round()
    return image_HWC


def look(colour: str, corner: tuple[int, int]) -> dict[str, Any]:
    return {"color": colour, "box": [*corner, corner[0] + SIZE, corner[1] + SIZE]}


SOURCE = drawn(("circle", "red", CIRCLE), ("square", "green", SQUARE), ("cross", "pink", CROSS))
URI = as_data_uri(SOURCE)


def row(before: dict[str, Any], after: dict[str, Any], name: str = "circle") -> PromptRecord:
    edit = {"class": name, "from": before, "to": after}
    return PromptRecord(0, "an edit", {"prompt": "an edit", "image": URI, "edit": edit}, source=URI)


RECOLOUR = row(look("red", CIRCLE), look("blue", CIRCLE))
MOVE = row(look("red", CIRCLE), look("red", (19, 19)))


def score(image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
    return judge_edit(image_HWC, prompt, detect)


@pytest.mark.parametrize("scorer", [EditsScorer(), TemplatesScorer()], ids=["contours", "templates"])
@pytest.mark.parametrize("tag", TAGS)
def test_the_true_picture_is_exact_and_the_source_is_not(tag: str, scorer: Scorer):
    rng = np.random.default_rng(1)
    for _ in range(40):
        prompt = TASK.draw_prompt(rng, tag=tag)
        SCORERS.find(scorer.name).check_prompt(prompt)
        true = scorer.score(TASK.render(prompt, rng), prompt)
        assert (true.value, true.exact) == (1, True), (prompt.text, true.detail)
        unchanged = scorer.score(read_source(prompt.source), prompt)
        # A shape to recolour stands there already; of a move only the rest is right.
        assert unchanged.value == pytest.approx(1 / 3 if tag == "recolour" else 1 / 8)
        assert not unchanged.exact


def test_only_the_edited_region_of_the_true_picture_differs_from_the_source():
    rng = np.random.default_rng(2)
    for tag in TAGS * 20:
        prompt = TASK.draw_prompt(rng, tag=tag)
        changed_HW = (TASK.render(prompt, rng) != read_source(prompt.source)).any(axis=-1)
        assert changed_HW.any()
        assert not (changed_HW & ~edited_region(edit_of(prompt), (32, 32))).any()


@pytest.mark.parametrize(
    ("prompt", "shapes", "graded"),
    [  # components: stands there, its colour, (the old place is empty,) the rest
        (RECOLOUR, [("circle", "blue", CIRCLE)], 1),
        (RECOLOUR, [("circle", "yellow", CIRCLE)], (1 + 0 + 1) / 3),
        (RECOLOUR, [("square", "blue", CIRCLE)], (0 + 0 + 1) / 3),
        (RECOLOUR, [("circle", "blue", (5, 5))], 1),  # two pixels off
        (RECOLOUR, [], (0 + 0 + 1) / 3),
        (MOVE, [("circle", "red", (19, 19))], 1),
        (MOVE, [("circle", "red", (19, 19)), ("circle", "red", CIRCLE)], (1 + 1 + 0 + 1) / 4),
        (MOVE, [("circle", "pink", (19, 19))], (1 + 0 + 1 + 1) / 4),
    ],
)  # fmt: skip
def test_the_value_of_an_edit(
    prompt: PromptRecord, shapes: list[tuple[str, str, tuple[int, int]]], graded: float
):
    image_HWC = drawn(*shapes, ("square", "green", SQUARE), ("cross", "pink", CROSS))
    found = score(image_HWC, prompt)
    assert found.exact == (graded == 1)
    assert found.value == pytest.approx((graded + found.exact) / 2)


def test_one_pixel_of_the_rest_is_noticed():
    edited = drawn(("circle", "blue", CIRCLE), ("square", "green", SQUARE), ("cross", "pink", CROSS))
    for place in ((8, 24), (31, 31), (24, 8)):
        image_HWC = edited.copy()
        image_HWC[place] += 1
        found = score(image_HWC, RECOLOUR)
        assert found.value == pytest.approx((1 + 1 + 15 / 16) / 6), place
        assert not found.exact
        assert found.detail.endswith("; 1 other pixels changed")
    for rows, kept in ((8, 1 / 2), (16, 0), (32, 0)):
        image_HWC = edited.copy()
        image_HWC[:rows, 31] += 1
        assert score(image_HWC, RECOLOUR).value == pytest.approx((1 + 1 + kept) / 6), rows
    inside = edited.copy()
    inside[CIRCLE[1] - 2, CIRCLE[0] - 2] = 99  # a shape may stand that far off
    assert score(inside, RECOLOUR).exact


def test_an_image_of_another_size_is_no_edit():
    with pytest.raises(RewardError, match="16 x 16 pixels, but its source 32 x 32"):
        score(np.zeros((16, 16, 3), np.uint8), RECOLOUR)


def changed(path: str, value: Any) -> PromptRecord:
    metadata = json.loads(json.dumps(RECOLOUR.metadata))
    *parents, last = path.split(".")
    inner = metadata
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return replace(RECOLOUR, metadata=metadata)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (PromptRecord(0, "make it blue"), "has no `edit`; an edit of shapes needs both"),
        (replace(RECOLOUR, source=""), "has no `image`"),
        (changed("edit.class", "dog"), "`edit.class` is 'dog'; choose from circle"),
        (changed("edit.to", "blue"), "`edit.to.color` is None; choose from red"),
        (changed("edit.to.color", "black"), "`edit.to.color` is 'black'"),
        (changed("edit.from.box", [3, 3, 14, 13]), r"`edit.from.box` is \[3, 3, 14, 13\]; give left, top"),
        (changed("edit.from.box", [30, 3, 40, 13]), "in pixels of 32 x 32"),
        (changed("edit.from.box", [3.0, 3, 13, 13]), "`edit.from.box`"),
        (changed("edit.to.color", "red"), "are equal; nothing changes"),
    ],
)
def test_rows_that_are_no_edit_are_refused(prompt: PromptRecord, says: str):
    for check in (edit_of, lambda row: TASK.render(row, np.random.default_rng(0))):
        with pytest.raises(PromptFileError, match=says):
            check(prompt)


def scene(prompt: PromptRecord) -> tuple[tuple[str, str, bool, bool], ...]:
    """The source's shapes without their displacement: class, colour and cell."""
    found = detect(read_source(prompt.source))
    return tuple(sorted((one.class_name, one.colour, one.box[0] > 14, one.box[1] > 14) for one in found))


def test_prompts_to_evaluate_share_no_source_with_those_to_train_on():
    train, evaluate = load_prompts("builtin:edits-train"), load_prompts("builtin:edits-evaluate")
    assert not {scene(prompt) for prompt in train} & {scene(prompt) for prompt in evaluate}
    assert {len(scene(prompt)) for prompt in train} == {2, 3}
    rng = np.random.default_rng(5)
    drawn_now = {scene(TASK.draw_prompt(rng)) for _ in range(300)}
    assert not drawn_now & {scene(TASK.draw_prompt(rng, held_out=True)) for _ in range(300)}


@pytest.mark.parametrize("name", ["edits-train", "edits-evaluate"])
def test_the_built_in_prompts_describe_their_sources(name: str):
    prompts = load_prompts(f"builtin:{name}")
    counts = [sum(prompt.metadata["tag"] == tag for prompt in prompts) for tag in TAGS]
    assert len(set(counts)) == 1
    assert len({(prompt.text, prompt.source) for prompt in prompts}) == len(prompts)
    for prompt in prompts[:60]:
        edit = edit_of(prompt)
        assert _sees(read_source(prompt.source), edit, edit.before)
        assert prompt.text.startswith(f"{'move' if edit.moves else 'make'} the {edit.before.colour} ")
        # One alone is meant: no other shape of the source has this class and colour.
        looks = [(one.class_name, one.colour) for one in detect(read_source(prompt.source))]
        assert looks.count((edit.class_name, edit.before.colour)) == 1


def _sees(image_HWC: np.ndarray, edit: Edit, wanted: Any) -> bool:
    return any(
        (one.class_name, one.colour) == (edit.class_name, wanted.colour)
        and abs(one.box[0] - wanted.box[0]) <= TOLERANCE
        for one in detect(image_HWC)
    )


def test_the_colours_differ_by_more_than_the_decoder_takes_for_noise():
    from gpu_runtime.models.embedded.pca_codec import LEAST_CHANGE

    values = np.array(list(COLOURS.values()))
    apart = np.abs(values[:, None] - values[None]).max(axis=-1)[~np.eye(len(values), dtype=bool)]
    assert apart.min() == 90 and apart.min() / 255 / 2 == pytest.approx(LEAST_CHANGE)
