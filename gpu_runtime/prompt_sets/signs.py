"""Prompts with a text to render: a scene, with the text in double quotes."""

from __future__ import annotations

import numpy as np

from gpu_runtime.embedded_tasks.protocol import is_held_out
from storage.errors import PromptFileError

SCENES = (
    'a wooden sign at a garden gate that says "{text}"', 'a neon sign in a dark window that says "{text}"',
    'a chalkboard outside a café with "{text}" written on it', 'the cover of a novel titled "{text}"',
    'a poster of a summer concert with the words "{text}"', 'a birthday cake with "{text}" in icing',
    'a street sign at a crossing that reads "{text}"', 'a label on a glass jar that reads "{text}"',
    'a paper cup with "{text}" printed on it', 'a rusty licence plate that reads "{text}"',
    'a banner over a market stall with the words "{text}"', 'a sticky note on a fridge that says "{text}"',
    'a ticket on a table with "{text}" on it', 'a shop front with the name "{text}" above the door',
    'a T-shirt on a line with "{text}" across the chest', 'a brass plate beside a door engraved "{text}"',
    'sand on a beach with "{text}" drawn in it', 'a screen at a station that shows "{text}"',
    'a wall with "{text}" sprayed in colour', 'a stamp on an envelope that reads "{text}"',
)  # fmt: skip

FIRST = (
    "OPEN", "LOST", "NEW", "GREEN", "QUIET", "FRESH", "LAST", "SLOW", "WARM", "OLD", "FREE", "SECRET", "WILD",
    "LITTLE", "BRIGHT", "NORTH", "GOLDEN", "EMPTY", "LUCKY", "DEEP", "SILVER", "EARLY", "HIDDEN", "SWEET",
)  # fmt: skip

SECOND = (
    "BREAD", "HARBOUR", "BOOKS", "GARDEN", "TRAIN", "COFFEE", "LIGHT", "RIVER", "MUSIC", "KEYS", "STORM",
    "APPLES", "BRIDGE", "WINTER", "PARADE", "TEA", "MARKET", "STATION", "FOREST", "CLOUDS", "ISLAND",
    "WINDOW", "HORSES", "MIDNIGHT",
)  # fmt: skip

_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"
_HELD_OUT_ONE_IN = 8


def _draw_text(rng: np.random.Generator) -> str:
    """Draw the text: one, two or three words, words and a number, or a code."""
    first, second = FIRST[rng.integers(len(FIRST))], SECOND[rng.integers(len(SECOND))]
    number = int(rng.integers(2, 100))
    letters = "".join(_LETTERS[index] for index in rng.integers(len(_LETTERS), size=3))
    forms = (
        second, f"{first} {second}", f"{first} {second} {number}", f"{second} {number}",
        f"{letters} {number}", f"{first} {second} AND {SECOND[rng.integers(len(SECOND))]}",
    )  # fmt: skip
    return forms[rng.integers(len(forms))]


def sign_lines(count: int, *, held_out: bool, seed: int) -> list[str]:
    """Draw distinct prompts; a held-out text is in no training prompt, whatever the scene.

    Args:
        held_out: True for prompts to evaluate with, False for prompts to train on.

    Raises:
        PromptFileError: `count` is below 1.
    """
    if count < 1:
        raise PromptFileError(f"{count} prompts of signs are asked for; ask for at least 1")
    rng = np.random.default_rng(seed)
    lines: dict[str, None] = {}
    while len(lines) < count:
        scene, text = SCENES[rng.integers(len(SCENES))], _draw_text(rng)
        if is_held_out(text, _HELD_OUT_ONE_IN) == held_out:
            lines[scene.format(text=text)] = None
    return list(lines)
