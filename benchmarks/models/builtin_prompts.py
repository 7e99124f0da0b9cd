"""Regenerate the built-in prompt files (presets/prompts), to the byte.

python -m benchmarks.builtin_prompts
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np

from gpu_runtime.embedded_tasks import edits
from gpu_runtime.embedded_tasks.glyphs import GlyphsTask
from gpu_runtime.embedded_tasks.moving_shapes import MovingShapesTask
from gpu_runtime.embedded_tasks.protocol import EmbeddedTask
from gpu_runtime.embedded_tasks.shapes import TAGS, ShapesTask
from gpu_runtime.prompt_sets.geneval import as_lines, official_rows, training_rows
from gpu_runtime.prompt_sets.signs import sign_lines
from storage.prompts.files import BUILTIN_FOLDER

BINDING = "color_attr"
"""Attribute binding: two objects with different colours; the tag that `embedded:shapes` fails most."""


def text_lines(task: EmbeddedTask, count: int, *, held_out: bool, seed: int) -> list[str]:
    """Draw `count` distinct text prompts."""
    rng = np.random.default_rng(seed)
    lines: dict[str, None] = {}
    while len(lines) < count:
        lines[task.draw_prompt(rng, held_out).text] = None
    return list(lines)


def bound_objects(line: str) -> frozenset[tuple[str, str]] | None:
    """Return the objects of a row of `BINDING` as unordered (colour, class) pairs; None for another tag."""
    row = json.loads(line)
    if row["tag"] != BINDING:
        return None
    return frozenset((item["color"], item["class"]) for item in row["include"])


def shape_lines(
    per_tag: int, *, held_out: bool, seed: int, tags: Sequence[str] = TAGS, apart_from: Sequence[str] = ()
) -> list[str]:
    """Draw `per_tag` rows of each tag, mixed; a tag with fewer rows than that repeats them.

    Repetition balances the tags. A repeated row has two prompt ids, and therefore different noise.
    """
    rng = np.random.default_rng(seed)
    task = ShapesTask()
    taken = {bound_objects(line) for line in apart_from} - {None}
    lines: list[str] = []
    for tag in tags:
        distinct: dict[str, None] = {}
        for _ in range(4000):  # far beyond the 500 rows of the largest tag
            if len(distinct) == per_tag:
                break
            line = json.dumps(task.draw_prompt(rng, held_out, tag).metadata)
            if bound_objects(line) not in taken:
                distinct[line] = None
        rows = list(distinct)
        lines += [rows[index % len(rows)] for index in range(per_tag)]
    return [lines[index] for index in rng.permutation(len(lines))]


def edit_lines(per_tag: int, *, held_out: bool, seed: int) -> list[str]:
    """Draw `per_tag` edits of each kind, mixed; no two have the same source and instruction."""
    rng = np.random.default_rng(seed)
    lines: dict[str, None] = {}
    for tag in edits.TAGS:
        before = len(lines)
        while len(lines) < before + per_tag:
            lines[json.dumps(edits.EditsTask().draw_prompt(rng, held_out, tag).metadata)] = None
    return [list(lines)[index] for index in rng.permutation(len(lines))]


def built_in_files() -> dict[str, str]:
    """Return the content of every built-in prompt file by its name."""
    shapes = shape_lines(24, held_out=True, seed=4)
    # Attribute binding alone: to post-train a model that is good at all else. No two objects of a held-out
    # prompt are together in a training prompt, in any order; few more prompts remain.
    binding = shape_lines(96, held_out=True, seed=6, tags=[BINDING])
    files = {
        "glyphs-train.txt": text_lines(GlyphsTask(), 1024, held_out=False, seed=1),
        "glyphs-evaluate.txt": text_lines(GlyphsTask(), 128, held_out=True, seed=2),
        "moving-shapes-train.txt": text_lines(MovingShapesTask(), 320, held_out=False, seed=11),
        "moving-shapes-evaluate.txt": text_lines(MovingShapesTask(), 96, held_out=True, seed=12),
        "shapes-train.jsonl": shape_lines(48, held_out=False, seed=3, apart_from=shapes),
        "shapes-evaluate.jsonl": shapes,
        "shapes-binding-train.jsonl": shape_lines(
            320, held_out=False, seed=5, tags=[BINDING], apart_from=binding
        ),
        "shapes-binding-evaluate.jsonl": binding,
        "edits-train.jsonl": edit_lines(192, held_out=False, seed=9),
        "edits-evaluate.jsonl": edit_lines(64, held_out=True, seed=10),
        "signs-train.txt": sign_lines(1024, held_out=False, seed=7),
        "signs-evaluate.txt": sign_lines(128, held_out=True, seed=8),
    }
    return {
        "geneval-evaluate.jsonl": as_lines(official_rows()),
        "geneval-train.jsonl": as_lines(training_rows(1700, 7)),
        **{name: "\n".join(lines) + "\n" for name, lines in files.items()},
    }


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    BUILTIN_FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in built_in_files().items():
        (BUILTIN_FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
