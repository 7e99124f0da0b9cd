"""GenEval's prompts (Ghosh et al., 2023): the 553 official ones, redrawn exactly, and others to train on.

The official file is one draw from a seeded generator. The same draws give the same file to the byte, and
further draws give more prompts of the same kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_runtime.embedded_tasks.shapes import NUMBERS, RELATIONS, TAGS, geneval_row
from storage.errors import PromptFileError

Row = dict[str, Any]

CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "computer mouse", "tv remote",
    "computer keyboard", "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book",
    "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
"""COCO's 80 classes in COCO's order, three of them with an additional word to be unambiguous."""

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")

OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

OFFICIAL_SEED = 43
_OFFICIAL_DRAWS = 100
"""Draws of each tag except `single_object`, which names each class once; repeated rows are then dropped."""

OFFICIAL_SHA256 = "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13"
"""SHA-256 of the official file's bytes."""

TRAINING_WEIGHTS: Mapping[str, int] = {
    "position": 7, "counting": 5, "color_attr": 3, "colors": 1, "two_object": 1, "single_object": 0,
}  # fmt: skip
"""Relative frequency of each tag in training (Flow-GRPO, arXiv 2505.05470, section 5.1): tags at which a base
model fails come most, and single objects, which it knows, never."""

_PEOPLE = 1
"""Number of first classes that get no colour: only `person`."""


def official_rows() -> list[Row]:
    """Return the 553 official rows, in the official order.

    Raises:
        PromptFileError: this version of numpy draws other numbers from the seed than the official file's.
    """
    rng = np.random.default_rng(OFFICIAL_SEED)
    names = [CLASSES[index] for index in rng.choice(len(CLASSES), len(CLASSES), replace=False)]
    rows = [geneval_row("single_object", [(name, "")]) for name in names]
    for tag in TAGS[1:]:
        rows += [draw_row(tag, rng) for _ in range(_OFFICIAL_DRAWS)]
    distinct = list({json.dumps(row): row for row in rows}.values())
    digest = hashlib.sha256(as_lines(distinct).encode()).hexdigest()
    if digest != OFFICIAL_SHA256:
        raise PromptFileError(
            f"numpy {np.__version__} draws other GenEval rows (SHA-256 {digest[:12]}) than the official ones "
            f"({OFFICIAL_SHA256[:12]}): use the committed file, builtin:geneval-evaluate"
        )
    return distinct


def draw_row(tag: str, rng: np.random.Generator) -> Row:
    """Draw a row of one of `TAGS`, with the same random draws in the same order as the official file."""
    if tag == "single_object":
        return geneval_row(tag, [(CLASSES[rng.choice(len(CLASSES))], "")])
    if tag == "counting":
        name = CLASSES[rng.choice(len(CLASSES))]
        count = int(rng.integers(min(NUMBERS), max(NUMBERS), endpoint=True))
        return geneval_row(tag, [(name, "")], count=count)
    if tag == "colors":
        name = CLASSES[rng.choice(len(CLASSES) - _PEOPLE) + _PEOPLE]
        return geneval_row(tag, [(name, COLOURS[rng.choice(len(COLOURS))])])
    left_out = _PEOPLE if tag == "color_attr" else 0
    drawn = rng.choice(len(CLASSES) - left_out, size=2, replace=False) + left_out
    first, second = (CLASSES[index] for index in drawn)
    if tag == "two_object":
        return geneval_row(tag, [(first, ""), (second, "")])
    if tag == "position":
        relation = RELATIONS[rng.choice(len(RELATIONS))]
        return geneval_row(tag, [(first, ""), (second, "")], relation=relation)
    colour, other = (COLOURS[index] for index in rng.choice(len(COLOURS), size=2, replace=False))
    return geneval_row(tag, [(first, colour), (second, other)])


def training_rows(count: int, seed: int) -> list[Row]:
    """Draw rows to train on: the tags by `TRAINING_WEIGHTS`, shuffled, without rows of the test.

    A row that means the same as a test row in other words (two objects in the other order) is left out too.
    Counting has so few rows that they repeat often; each repetition has a different prompt id, and so
    different noise.

    Raises:
        PromptFileError: `count` is below 1.
    """
    if count < 1:
        raise PromptFileError(f"{count} GenEval rows are asked for; ask for at least 1")
    rng = np.random.default_rng(seed)
    test = {meaning(row) for row in official_rows()}
    total = sum(TRAINING_WEIGHTS.values())
    rows: list[Row] = []
    for tag, weight in TRAINING_WEIGHTS.items():
        rows += _drawn_outside(test, tag, count * weight // total, rng)
    heaviest = max(TRAINING_WEIGHTS, key=lambda tag: TRAINING_WEIGHTS[tag])
    rows += _drawn_outside(test, heaviest, count - len(rows), rng)
    return [rows[index] for index in rng.permutation(len(rows))]


def meaning(row: Row) -> tuple[object, ...]:
    """Return the meaning of a row, which is equal for two rows that the same pictures satisfy."""
    include = row["include"]
    objects = sorted((item["class"], item["count"], item.get("color", "")) for item in include)
    relations = set()
    for item in include:
        if item.get("position") is not None:
            relation, index = item["position"]
            pair = (item["class"], relation, include[index]["class"])
            relations.add(min(pair, (pair[2], OPPOSITE[relation], pair[0])))
    return tuple(objects), tuple(sorted(relations))


def as_lines(rows: list[Row]) -> str:
    """Return the rows as the content of a .jsonl file."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def _drawn_outside(
    test: set[tuple[object, ...]], tag: str, count: int, rng: np.random.Generator
) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < count:
        row = draw_row(tag, rng)
        if meaning(row) not in test:
            rows.append(row)
    return rows
