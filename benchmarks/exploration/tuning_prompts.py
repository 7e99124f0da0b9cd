"""Prompts to choose settings by, cut from the training prompts: held-out ones are for figures alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.models.builtin_prompts import bound_objects
from storage.config.loading import load_config
from storage.prompts.files import resolve_prompt_path

HELD_OUT = 96
"""Prompts that settings are judged by, at least; as many as an evaluation takes."""


def sign_text(line: str) -> str:
    """What a prompt of `glyphs` wants written."""
    return line.split('"')[1]


SUBJECTS: Mapping[str, Callable[[str], Hashable]] = {"ocr": sign_text, "shapes": bound_objects}
"""Of each scorer what no prompt on one side of a split shares with one on the other."""


def tuning_split(
    lines: Sequence[str], subject: Callable[[str], Hashable], count: int
) -> tuple[list[str], list[str]]:
    """Divide prompts in two, so that no subject is on both sides; always in the same way.

    Args:
        lines: of the training prompts.
        subject: of a line.
        count: prompts to hold out, at least.

    Returns:
        Lines to train on and lines to judge by, each in their order.
    """
    subjects = list(dict.fromkeys(map(subject, lines)))
    of_line = [subject(line) for line in lines]
    held: set[Hashable] = set()
    for place in np.random.default_rng(0).permutation(len(subjects)):
        if sum(one in held for one in of_line) >= count:
            break
        held.add(subjects[place])
    pairs = list(zip(lines, of_line, strict=True))
    return [line for line, one in pairs if one not in held], [line for line, one in pairs if one in held]


def tuning_settings(scorer: str, preset: str, folder: Path) -> tuple[str, ...]:
    """Settings by which a preset trains and is judged on its training prompts alone.

    Args:
        scorer: of `SUBJECTS`.
        preset: with that scorer, and with text or JSON lines to train on.
        folder: for the two files.
    """
    whole = resolve_prompt_path(load_config(preset, [], {}).prompts.train)
    lines = whole.read_text(encoding="utf-8").splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    settings = []
    for name, part in zip(
        ("train", "evaluate"), tuning_split(lines, SUBJECTS[scorer], HELD_OUT), strict=True
    ):
        path = folder / f"{scorer}-{name}{whole.suffix}"
        path.write_text("\n".join(part) + "\n", encoding="utf-8")
        settings.append(f"prompts.{name}={path}")
    return tuple(settings)
