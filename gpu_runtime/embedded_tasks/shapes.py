"""The task `shapes`: GenEval's six kinds of prompt in miniature, on a 32x32 canvas.

Rows have GenEval's format (Ghosh et al., 2023): tag, include, exclude, prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from gpu_runtime.embedded_tasks.protocol import RenderedPicture, is_held_out
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord

CLASSES: tuple[str, ...] = ("circle", "square", "triangle", "cross")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 45, 40),
    "yellow": (235, 215, 50),
    "green": (45, 185, 70),
    "blue": (60, 100, 240),
    "purple": (150, 60, 200),
    "pink": (250, 150, 200),
    "white": (240, 240, 240),
}
BACKGROUND = (24, 24, 28)
TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
_TAG_WEIGHTS = (0.1, 0.1, 0.1, 0.2, 0.2, 0.3)
"""Probability of each tag in draws; tags that bind colours and places to objects take longest to learn."""

RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = {2: "two", 3: "three", 4: "four"}

SIZE = 10
"""Side of an object's bounding box, in pixels."""

_CELLS = ((0, 0), (0, 1), (1, 0), (1, 1))
MOST_OBJECTS = len(_CELLS)
_CELL = 16
_MARGIN = (_CELL - SIZE) // 2
_JITTER = 1
_SUPERSAMPLING = 8
_HELD_OUT_ONE_IN = 5
_TAGS_HELD_OUT = ("colors", "position", "color_attr")
"""Tags with held-out prompts; the others have too few prompts (4 to 12) to withhold any from training."""


class ShapesTask:
    """Implements `gpu_runtime.embedded_tasks.protocol.EmbeddedTask`."""

    name = "shapes"
    height = 32
    width = 32
    frames = 0
    text_length = 12

    def draw_prompt(self, rng: np.random.Generator, held_out: bool = False, tag: str = "") -> PromptRecord:
        """Draw a prompt; see `EmbeddedTask`.

        Args:
            held_out: True for one of the held-out prompts; it makes no difference to tags with few prompts.
            tag: one of `TAGS`; empty to draw one, the harder ones more often.
        """
        tag = tag or TAGS[rng.choice(len(TAGS), p=_TAG_WEIGHTS)]
        while True:
            row = _draw_row(tag, rng)
            if tag not in _TAGS_HELD_OUT or is_held_out(row["prompt"], _HELD_OUT_ONE_IN) == held_out:
                return PromptRecord(0, row["prompt"], row)

    def render(self, prompt: PromptRecord, rng: np.random.Generator) -> np.ndarray:
        """Draw the objects of `include` in cells of a 2x2 grid, displaced by up to a pixel.

        Colours that the prompt leaves open are random for each object.
        """
        objects = _objects(prompt)
        cells: list[int] = []
        while not cells or not _relations_hold(objects, cells):
            cells = rng.permutation(len(_CELLS))[: len(objects)].tolist()
        image_HWC = np.full((self.height, self.width, 3), BACKGROUND, np.float32)
        for (name, colour, *_), cell in zip(objects, cells, strict=True):
            colour = colour or list(COLOURS)[rng.integers(len(COLOURS))]
            top, left = (
                place * _CELL + _MARGIN + int(rng.integers(-_JITTER, _JITTER + 1)) for place in _CELLS[cell]
            )
            image_HWC[top : top + SIZE, left : left + SIZE] = patch(name, colour)
        return image_HWC.round().astype(np.uint8)

    def nearest_picture(self, prompt: PromptRecord, image_HWC: np.ndarray) -> RenderedPicture:
        """Return the picture with cells, displacements and colours nearest to an image; see `EmbeddedTask`.

        Cells do not overlap, so each object's best place in each cell is found independently, then the best
        choice of cells.
        """
        objects = _objects(prompt)
        kinds = {(name, colour) for name, colour, *_ in objects}
        of_kind = {kind: [_best_in_cell(image_HWC, *kind, cell) for cell in _CELLS] for kind in kinds}
        placed = [of_kind[name, colour] for name, colour, *_ in objects]
        every = permutations(range(len(_CELLS)), len(objects))
        if not (allowed := [cells for cells in every if _relations_hold(objects, cells)]):
            raise ConfigurationError(f"{prompt.text!r} has relations that no cells of a 2x2 grid satisfy")
        chosen = min(
            allowed,
            key=lambda cells: sum(best[cell].cost for best, cell in zip(placed, cells, strict=True)),
        )
        picture_HWC = np.full((self.height, self.width, 3), BACKGROUND, np.float32)
        drawn_HW = np.zeros((self.height, self.width), dtype=bool)
        for number, cell in enumerate(chosen):
            best, name = placed[number][cell], objects[number].name
            box = np.s_[best.top : best.top + SIZE, best.left : best.left + SIZE]
            picture_HWC[box] = patch(name, best.colour)
            drawn_HW[box] = coverage(name) > 0
        return RenderedPicture(picture_HWC.round().astype(np.uint8), drawn_HW)


class _Placed(NamedTuple):
    """An object's place in a cell nearest to an image; `cost` is its squared error minus the background's."""

    cost: float
    top: int
    left: int
    colour: str


def _best_in_cell(image_HWC: np.ndarray, name: str, colour: str | None, cell: tuple[int, int]) -> _Placed:
    """Return the best displacement and colour of an object in a cell; the first of equal ones."""
    colours = list(COLOURS) if colour is None else [colour]
    top, left = (place * _CELL + _MARGIN for place in cell)
    places = [(top + down, left + right) for down, right in product(range(-_JITTER, _JITTER + 1), repeat=2)]
    boxes_ND = np.stack([image_HWC[y : y + SIZE, x : x + SIZE].ravel() for y, x in places]).astype(np.float64)
    patches_KD = np.stack([patch(name, choice).round().ravel() for choice in colours]).astype(np.float64)
    empty_D = np.tile(np.array(BACKGROUND, dtype=np.float64), SIZE * SIZE)
    # |box - patch|^2 - |box - empty|^2, exact because all values are whole numbers.
    cost_NK = (patches_KD**2).sum(axis=1) - empty_D @ empty_D - 2 * boxes_ND @ (patches_KD - empty_D).T
    place, choice = divmod(int(cost_NK.argmin()), len(colours))
    return _Placed(float(cost_NK[place, choice]), *places[place], colours[choice])


@lru_cache(maxsize=len(CLASSES) * len(COLOURS))
def patch(name: str, colour: str) -> np.ndarray:
    """Return a shape's bounding box on the background: float32, shape (SIZE, SIZE, 3)."""
    background_3, colour_3 = (np.array(values, dtype=np.float32) for values in (BACKGROUND, COLOURS[colour]))
    return background_3 + coverage(name)[..., None] * (colour_3 - background_3)


@lru_cache(maxsize=len(CLASSES))
def coverage(name: str) -> np.ndarray:
    """Return how much of each pixel a shape covers: float32 in [0, 1], shape (SIZE, SIZE)."""
    side = SIZE * _SUPERSAMPLING
    canvas = Image.new("L", (side, side), 0)
    draw = ImageDraw.Draw(canvas)
    end = side - 1
    if name == "circle":
        draw.ellipse((0, 0, end, end), fill=255)
    elif name == "square":
        draw.rectangle((0, 0, end, end), fill=255)
    elif name == "triangle":
        draw.polygon(((side // 2, 0), (end, end), (0, end)), fill=255)
    else:
        near, far = side * 0.32, side * 0.68
        draw.rectangle((near, 0, far, end), fill=255)
        draw.rectangle((0, near, end, far), fill=255)
    small = canvas.resize((SIZE, SIZE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255


def _draw_row(tag: str, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a GenEval row of one tag."""
    first, second = (CLASSES[index] for index in rng.choice(len(CLASSES), 2, replace=False))
    colour, other = (list(COLOURS)[index] for index in rng.choice(len(COLOURS), 2, replace=False))
    if tag == "counting":
        count = int(rng.integers(min(NUMBERS), max(NUMBERS), endpoint=True))
        return geneval_row(tag, [(first, "")], count=count)
    if tag == "position":
        relation = RELATIONS[rng.integers(len(RELATIONS))]
        return geneval_row(tag, [(first, ""), (second, "")], relation=relation)
    if tag in ("single_object", "two_object"):
        colour = other = ""
    objects = [(first, colour), (second, other)]
    return geneval_row(tag, objects[: 1 if tag in ("single_object", "colors") else 2])


def geneval_row(
    tag: str, objects: Sequence[tuple[str, str]], count: int = 1, relation: str = ""
) -> dict[str, Any]:
    """Return a row that asks for objects, with GenEval's wording.

    Args:
        objects: class and colour of one or two objects; "" for any colour.
        count: number of copies of a single object, where the number matters; see `NUMBERS`.
        relation: position of the first object relative to the second; "" for any position.
    """
    # Plurals have one rule: the official file has "benchs" and "knifes".
    named = [f"{colour} {name}".lstrip() for name, colour in objects]
    words = [f"{'an' if one[0] in 'aeiou' else 'a'} {one}" for one in named]
    include: list[dict[str, Any]] = [
        {"class": name, "count": count} | ({"color": colour} if colour else {}) for name, colour in objects
    ]
    row: dict[str, Any] = {"tag": tag, "include": include}
    what = " and ".join(words)
    if count > 1:
        row["exclude"] = [{"class": objects[0][0], "count": count + 1}]
        what = f"{NUMBERS[count]} {named[0]}{'es' if named[0].endswith('s') else 's'}"
    if relation:
        include[0]["position"] = [relation, 0]  # relative to the item that now comes first
        include.reverse()
        what = f" {relation} ".join(words)
    return row | {"prompt": f"a photo of {what}"}


class _Object(NamedTuple):
    """An object to draw; `item` is its place in `include`, to which a position refers."""

    name: str
    colour: str | None
    position: tuple[str, int] | None
    item: int


def _objects(prompt: PromptRecord) -> list[_Object]:
    objects: list[_Object] = []
    for place, item in enumerate(prompt.metadata.get("include", [])):
        name, colour, position = item["class"], item.get("color"), item.get("position")
        if name not in CLASSES or (colour is not None and colour not in COLOURS):
            raise ConfigurationError(
                f"{prompt.text!r}: the shapes task draws {', '.join(CLASSES)} in {', '.join(COLOURS)}, "
                f"not {colour or 'any'} {name}"
            )
        objects += [_Object(name, colour, position, place)] * item["count"]
    if not 0 < len(objects) <= MOST_OBJECTS:
        raise ConfigurationError(
            f"{prompt.text!r} asks for {len(objects)} objects; the shapes task draws 1 to {MOST_OBJECTS}"
        )
    return objects


def _relations_hold(objects: list[_Object], cells: Sequence[int]) -> bool:
    placed = [(one, *_CELLS[cell]) for one, cell in zip(objects, cells, strict=True)]
    for (one, y, x), (other, other_y, other_x) in product(placed, repeat=2):
        if one.position is not None and other.item == one.position[1]:
            down, right = y - other_y, x - other_x
            holds = {"left of": right < 0, "right of": right > 0, "above": down < 0, "below": down > 0}
            if not holds[one.position[0]]:
                return False
    return True
