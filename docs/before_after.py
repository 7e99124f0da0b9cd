"""Draw held-out images of a run before and after training, as the README shows them.

    python docs/before_after.py RUN [FILE]

RUN is one of the home that `SPOTLIGHT_HOME` names. Shown are the first four held-out prompts whose image is
wrong before training and right at the last evaluation, each from the same seed.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path

import pandas as pd

from storage.errors import StorageError
from storage.home import Home
from storage.record.queries.images import pictured_evaluations, pictured_images, pictures
from storage.record.run_store import RunStore

PAIRS = 4
WIDTH, HEIGHT, IMAGE = 900, 158, 96
INK, RIGHT, WRONG = "#1f2933", "#2f855a", "#c2410c"


def learned_pairs(home: Home, run_id: str) -> list[tuple[pd.Series, pd.Series]]:
    """Return images before and after training: columns as of `pictures`.

    Raises:
        StorageError: where a run has none that went from wrong to right.
    """
    with RunStore(home).reading(run_id) as record:
        evaluations = pictured_evaluations(record, run_id)
        images = list(pictured_images(record, run_id)[["prompt_id", "seed_index"]].itertuples(index=False))
        ends = [evaluations[0], evaluations[-1]] if evaluations else []
        shown = pictures(record, run_id, ends, images)
    pairs = [
        (image.iloc[0], image.iloc[-1])
        for _, image in shown.groupby(["prompt_id", "seed_index"])
        if len(image) == 2 and not image.exact.iloc[0] and image.exact.iloc[-1]
    ]
    if not pairs:
        raise StorageError(f"run {run_id} has no held-out image that is wrong at first and right at the end")
    of_prompts = {before.prompt_id: (before, after) for before, after in reversed(pairs)}
    return [of_prompts[prompt_id] for prompt_id in sorted(of_prompts)][:PAIRS]


def draw(pairs: Iterable[tuple[pd.Series, pd.Series]]) -> str:
    """Return an SVG with the pairs side by side, images as PNG inside."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    for place, (before, after) in enumerate(pairs):
        left = 12 + place * (WIDTH // PAIRS)
        parts.append(_text(left, 24, before.prompt, INK, 14))
        for side, (image, colour) in enumerate(((before, WRONG), (after, RIGHT))):
            x = left + side * (IMAGE + 8)
            png = base64.b64encode(image.png).decode()
            words = f"{'after' if side else 'before'}: score {image.score:.2f}"
            parts += [
                f'<image x="{x}" y="36" width="{IMAGE}" height="{IMAGE}" '
                f'style="image-rendering:pixelated" href="data:image/png;base64,{png}"/>',
                _text(x, 149, words, colour, 11),
            ]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, colour: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}">{escape(words)}</text>'


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="identifier of a finished run")
    parser.add_argument(
        "file", nargs="?", type=Path, default=Path(__file__).parent / "images/before-after.svg"
    )
    given = parser.parse_args()
    given.file.write_text(draw(learned_pairs(Home.from_environment(), given.run)), encoding="utf-8")


if __name__ == "__main__":
    main()
