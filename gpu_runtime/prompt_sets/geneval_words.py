"""The words of GenEval's prompts (Ghosh et al., 2023): classes, colours, relations, and their grammar."""

from __future__ import annotations

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

RELATIONS = ("left of", "right of", "above", "below")
"""Relations of the tag `position`."""

OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}

NUMBERS = {2: "two", 3: "three", 4: "four"}
"""Numbers of objects in counting prompts."""

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
"""The kinds of prompt, in the order of the official file."""


def with_article(words: str) -> str:
    """Return the words with `a` or `an` before them, by their first letter."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(name: str) -> str:
    """Return GenEval's plural, which has one rule: the official file has "benchs" and "knifes"."""
    return f"{name}es" if name.endswith("s") else f"{name}s"
