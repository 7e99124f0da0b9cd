"""GenEval's judgement (Ghosh et al., 2023) from detected objects.

`exact` is GenEval's own verdict. `value` is a graded reward like Flow-GRPO's (arXiv 2505.05470), kept
within [0, 1] and with every component counted once. There, a wrong number of objects also makes their
colour and place 0; here these are judged by themselves, on the most certain objects.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_runtime.embedded_tasks import shapes
from gpu_runtime.scheduling.scores import Score
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord

DEAD_ZONE = 0.1
"""Part of the two boxes' summed size that an offset must exceed to count."""

RELATION_THRESHOLD = 0.5
"""Least component of the offset, relative to its length, for a relation to hold."""


@dataclass(frozen=True)
class Detection:
    """One object in a picture.

    Attributes:
        colour: its colour; empty if it was not classified.
        box: left, top, right, bottom in pixels.
        confidence: confidence of the detector, in [0, 1].
        mask_HW: mask of the picture's pixels that it covers, bool; None if only the box is known.
    """

    class_name: str
    colour: str
    box: tuple[float, float, float, float]
    confidence: float
    mask_HW: np.ndarray | None = field(default=None, compare=False, repr=False)


def relations(box: tuple[float, ...], other: tuple[float, ...]) -> set[str]:
    """Return the relations (left of, right of, above, below) that hold for `box` towards `other`."""
    offset, kept = [], []
    for axis in (0, 1):
        size = (box[axis + 2] - box[axis]) + (other[axis + 2] - other[axis])
        along = (box[axis] + box[axis + 2] - other[axis] - other[axis + 2]) / 2
        offset.append(along)
        kept.append(math.copysign(max(abs(along) - DEAD_ZONE * size, 0.0), along))
    length = math.hypot(*offset)
    if length == 0.0:
        return set()
    right, down = (part / length for part in kept)
    holds = {
        "left of": right < -RELATION_THRESHOLD,
        "right of": right > RELATION_THRESHOLD,
        "above": down < -RELATION_THRESHOLD,
        "below": down > RELATION_THRESHOLD,
    }
    return {relation for relation, true in holds.items() if true}


def check_row(
    prompt: PromptRecord, classes: Collection[str], colours: Collection[str], most_objects: int
) -> None:
    """Refuse a GenEval row that no image could satisfy.

    Args:
        prompt: prompt with its row, whose form `storage.prompts.files` has checked.
        classes: classes that can be detected.
        colours: colours that can be told apart.

    Raises:
        PromptFileError: if the prompt has no `include`, names an unknown value, asks for more objects
            than there is room for, or excludes what it asks for.
    """
    include, exclude = included(prompt), prompt.metadata.get("exclude", [])
    for item in [*include, *exclude]:
        _refuse_unknown(prompt, "class", item["class"], classes)
        if "color" in item:
            _refuse_unknown(prompt, "color", item["color"], colours)
        if item.get("position") is not None:
            _refuse_unknown(prompt, "position", item["position"][0], shapes.RELATIONS)
    asked = sum(item["count"] for item in include)
    if asked > most_objects:
        raise PromptFileError(
            f"prompt {prompt.text!r} asks for {asked} objects; an image has room for {most_objects}: "
            "lower `count`"
        )
    for item in exclude:
        wanted = max((i["count"] for i in include if i["class"] == item["class"]), default=0)
        if item["count"] <= wanted:
            raise PromptFileError(
                f"prompt {prompt.text!r} asks for {wanted} {item['class']} and excludes {item['count']}; "
                f"raise `exclude` to {wanted + 1} or more"
            )


def check_shapes(prompt: PromptRecord) -> None:
    """Refuse a row that no picture of the task `shapes` can satisfy.

    Raises:
        PromptFileError: see `check_row`.
    """
    check_row(prompt, shapes.CLASSES, shapes.COLOURS, shapes.MOST_OBJECTS)


def included(prompt: PromptRecord) -> list[dict[str, Any]]:
    """Return the objects that a row asks for.

    Raises:
        PromptFileError: if the prompt has no row, like one from a .txt file.
    """
    include = prompt.metadata.get("include")
    if not include:
        raise PromptFileError(
            f"prompt {prompt.text!r} has no `include`; this reward needs GenEval rows (.jsonl)"
        )
    return include


def _refuse_unknown(prompt: PromptRecord, key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise PromptFileError(
            f"prompt {prompt.text!r} has `{key}` {value!r}; this reward knows {', '.join(known)}"
        )


def judge(detections: Sequence[Detection], prompt: PromptRecord) -> Score:
    """Score detected objects against a GenEval row.

    The value is the mean over components: each requested class's count and colour, 1 - |asked -
    found| / asked within [0, 1], and each position, 1 or 0. An image may be exact below value 1:
    GenEval forgives a second object if one was asked for, unless `exclude` names it.

    Raises:
        PromptFileError: if the prompt has no `include`, like one from a .txt file.
    """
    include = included(prompt)
    ranked = sorted(detections, key=lambda found: -found.confidence)
    groups = [[found for found in ranked if found.class_name == item["class"]] for item in include]
    components: list[float] = []
    exact = True
    for item, group in zip(include, groups, strict=True):
        count = item["count"]
        components.append(_closeness(count, len(group)))
        exact &= len(group) >= count
        if "color" in item:
            right = sum(found.colour == item["color"] for found in group[:count])
            components.append(_closeness(count, right))
            exact &= right >= count
        if item.get("position") is not None:
            # Every object of the group must have the relation to every object of the other group.
            relation, index = item["position"]
            own, others = group[:count], groups[index][: include[index]["count"]]
            holds = bool(own and others) and all(
                relation in relations(found.box, other.box) for found in own for other in others
            )
            components.append(float(holds))
            exact &= holds
    for item in prompt.metadata.get("exclude", []):
        exact &= sum(found.class_name == item["class"] for found in ranked) < item["count"]
    detail = ", ".join(f"{found.colour} {found.class_name}".strip() for found in ranked)
    return Score(sum(components) / len(components), exact, detail or "nothing")


def _closeness(asked: int, found: int) -> float:
    return max(0.0, 1.0 - abs(asked - found) / asked)
