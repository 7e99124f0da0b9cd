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


SUBJECTS: Mapping[str, Callable[[str], Hashable]] = {
    "ocr": lambda line: line.split('"')[1],  # what a prompt of `glyphs` wants written
    "shapes": bound_objects,
}
"""Of each scorer what no prompt on one side of a split shares with one on the other."""


def tuning_split(
    lines: Sequence[str], subject: Callable[[str], Hashable], count: int
) -> tuple[list[str], list[str]]:
    """Divide prompts in two, so that no subject is on both sides; always in the same way.

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
    """Settings by which a preset trains and is judged on its training prompts alone."""
    whole = resolve_prompt_path(load_config(preset, [], {}).prompts.train)
    lines = whole.read_text(encoding="utf-8").splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = tuning_split(lines, SUBJECTS[scorer], HELD_OUT)
    settings = []
    for name, part in (("train", train), ("evaluate", held_out)):
        path = folder / f"{scorer}-{name}{whole.suffix}"
        path.write_text("\n".join(part) + "\n", encoding="utf-8")
        settings.append(f"prompts.{name}={path}")
    return tuple(settings)
