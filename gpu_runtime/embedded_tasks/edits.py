"""The task `edits`: change one shape of a picture of shapes as instructed, and leave the rest unchanged.

The source is a picture of the task `shapes` with two or three shapes. A row of a prompt file holds it as a
data URI (`image`) and describes the change (`edit`), so the true picture follows from the row:

    {"tag": "recolour", "prompt": "make the red circle blue", "image": "data:image/png;base64,...",
     "edit": {"class": "circle", "from": {"color": "red", "box": [3, 4, 13, 14]},
              "to": {"color": "blue", "box": [3, 4, 13, 14]}}}
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from gpu_runtime.embedded_tasks.protocol import RenderedPicture, is_held_out
from gpu_runtime.embedded_tasks.shapes import BACKGROUND, CLASSES, COLOURS, SIZE, patch
from storage.errors import PromptFileError, quoted
from storage.prompts.files import PromptRecord
from storage.prompts.sources import as_data_uri, read_source

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are exclusive."""

TAGS = ("recolour", "move")
PLACES = ("top left", "top right", "bottom left", "bottom right")
_CELL = 16
_MARGIN = (_CELL - SIZE) // 2
_JITTER = 1
_FEWEST, _MOST = 2, 3
"""Fewest and most shapes of a source; at least one of the four cells stays free to move to."""

_HELD_OUT_ONE_IN = 5
_KINDS = list(product(CLASSES, COLOURS))


@dataclass(frozen=True)
class Look:
    """A shape's colour and its box."""

    colour: str
    box: Box


@dataclass(frozen=True)
class Edit:
    """The change that an instruction asks for.

    Attributes:
        before: the shape's look in the source.
        after: its look after the edit.
    """

    class_name: str
    before: Look
    after: Look

    @property
    def moves(self) -> bool:
        """True if the shape changes its place."""
        return self.before.box != self.after.box


class EditsTask:
    """Implements `gpu_runtime.embedded_tasks.protocol.EmbeddedTask`."""

    name = "edits"
    height = 32
    width = 32
    frames = 0
    text_length = 12

    def draw_prompt(self, rng: np.random.Generator, held_out: bool = False, tag: str = "") -> PromptRecord:
        """Draw a source and an instruction; a fifth of all sources is held out.

        All displacements of a held-out source are held out, with every instruction: (source, instruction)
        pairs of training and of evaluation differ in the shapes, their colours or their places.

        Args:
            tag: one of `TAGS`; empty to draw one, each equally often.
        """
        tag = tag or TAGS[rng.integers(len(TAGS))]
        while True:
            kinds = rng.choice(len(_KINDS), int(rng.integers(_FEWEST, _MOST + 1)), replace=False)
            places = rng.permutation(len(PLACES))[: len(kinds)]
            cells = {int(cell): _KINDS[kind] for cell, kind in zip(places, kinds, strict=True)}
            if is_held_out(repr(sorted(cells.items())), _HELD_OUT_ONE_IN) == held_out:
                return _prompt(tag, cells, rng)

    def render(self, prompt: PromptRecord, rng: np.random.Generator) -> np.ndarray:
        """Return the source with the edit applied; nothing is random. uint8 RGB, shape (32, 32, 3)."""
        return self.nearest_picture(prompt, np.empty(0)).image_HWC

    def nearest_picture(self, prompt: PromptRecord, image_HWC: np.ndarray) -> RenderedPicture:
        """Return the only correct picture of a prompt, whatever the image; see `EmbeddedTask`."""
        edit, source_HWC = edit_of(prompt), read_source(prompt.source)
        picture_HWC = source_HWC.copy()
        picture_HWC[_slices(edit.before.box)] = BACKGROUND
        picture_HWC[_slices(edit.after.box)] = patch(edit.class_name, edit.after.colour).round()
        drawn_HW = np.abs(picture_HWC.astype(np.int16) - np.array(BACKGROUND)).max(axis=-1) > 0
        return RenderedPicture(picture_HWC, drawn_HW)


def edit_of(prompt: PromptRecord) -> Edit:
    """Return the edit that a prompt asks for.

    Raises:
        PromptFileError: it has no image or no `edit`, or an edit that the task's renderer cannot draw.
    """
    asked = prompt.metadata.get("edit")
    if not isinstance(asked, dict) or not prompt.source:
        raise PromptFileError(
            f"prompt {prompt.text!r} has no `{'image' if isinstance(asked, dict) else 'edit'}`; an edit of "
            "shapes needs both (docs/reference/rewards.md)"
        )
    name = asked.get("class")
    if name not in CLASSES:
        raise PromptFileError(
            f"prompt {prompt.text!r}: `edit.class` is {quoted(name)}; choose from {', '.join(CLASSES)}"
        )
    edit = Edit(
        name, *(_look(asked.get(key), f"prompt {prompt.text!r}: `edit.{key}") for key in ("from", "to"))
    )
    if edit.before == edit.after:
        raise PromptFileError(f"prompt {prompt.text!r}: `edit.from` and `edit.to` are equal; nothing changes")
    return edit


def _look(value: Any, where: str) -> Look:
    colour, box = (value.get("color"), value.get("box")) if isinstance(value, dict) else (None, None)
    if colour not in COLOURS:
        raise PromptFileError(f"{where}.color` is {quoted(colour)}; choose from {', '.join(COLOURS)}")
    left, top = -1, -1
    if isinstance(box, list) and len(box) == 4 and all(type(side) is int for side in box):
        left, top = box[:2]
    inside = 0 <= left <= EditsTask.width - SIZE and 0 <= top <= EditsTask.height - SIZE
    if not inside or box != [left, top, left + SIZE, top + SIZE]:
        raise PromptFileError(
            f"{where}.box` is {quoted(box)}; give left, top, left + {SIZE} and top + {SIZE}, in pixels of "
            f"{EditsTask.width} x {EditsTask.height}"
        )
    return Look(colour, (left, top, left + SIZE, top + SIZE))


def _prompt(tag: str, cells: dict[int, tuple[str, str]], rng: np.random.Generator) -> PromptRecord:
    """Displace the shapes by up to a pixel, and draw an instruction for one of them."""
    source_HWC = np.full((EditsTask.height, EditsTask.width, 3), BACKGROUND, np.uint8)
    shifts = {cell: rng.integers(-_JITTER, _JITTER + 1, size=2) for cell in cells}
    for cell, (name, colour) in cells.items():
        source_HWC[_slices(_box(cell, shifts[cell]))] = patch(name, colour).round()
    chosen = list(cells)[rng.integers(len(cells))]
    name, colour = cells[chosen]
    place, other = chosen, colour
    if tag == "move":
        free = [cell for cell in range(len(PLACES)) if cell not in cells]
        place = free[rng.integers(len(free))]
        text = f"move the {colour} {name} to the {PLACES[place]}"
    else:
        # Not the colour of another shape of the class, or the picture would have two equal shapes.
        taken = {its_colour for its_name, its_colour in cells.values() if its_name == name}
        others = [known for known in COLOURS if known not in taken]
        other = others[rng.integers(len(others))]
        text = f"make the {colour} {name} {other}"
    edit = {
        "class": name,
        "from": {"color": colour, "box": list(_box(chosen, shifts[chosen]))},
        "to": {"color": other, "box": list(_box(place, shifts[chosen]))},
    }
    uri = as_data_uri(source_HWC)
    return PromptRecord(0, text, {"tag": tag, "prompt": text, "image": uri, "edit": edit}, source=uri)


def _box(cell: int, shift: np.ndarray) -> Box:
    top, left = (
        place * _CELL + _MARGIN + int(offset) for place, offset in zip(divmod(cell, 2), shift, strict=True)
    )
    return left, top, left + SIZE, top + SIZE


def _slices(box: Box) -> tuple[slice, slice]:
    left, top, right, bottom = box
    return slice(top, bottom), slice(left, right)
