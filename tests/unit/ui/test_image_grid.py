"""Images of the dashboard: an edit stands beside the image that its prompt asks to change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from storage.prompts.files import load_prompts
from storage.prompts.sources import as_data_uri, read_source, thumbnail
from ui.data.images import load_sources
from ui.elements.image_grid import course_html, evaluation_html, gallery_html, large_html

IMAGES = pd.DataFrame(
    [
        {
            "prompt_id": 3, "seed_index": 0, "prompt": "make it <red>", "iteration": iteration, "score": 0.5,
            "exact": False, "detail": "a circle", "error": None, "png": b"png",
        }
        for iteration in (0, 10)
    ]
)  # fmt: skip
PAIR = pd.DataFrame(
    [
        {"prompt_id": 3, "seed_index": 0, "prompt": "make it <red>"}
        | {
            f"{name}_{when}": value
            for when, iteration in (("before", 0), ("after", 10))
            for name, value in (IMAGES.iloc[0].to_dict() | {"iteration": iteration}).items()
        }
    ]
)
SOURCE = as_data_uri(np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize("grid", [course_html, large_html, evaluation_html])
def test_the_source_stands_before_the_images(grid) -> None:
    shown = grid(IMAGES, {3: SOURCE, 4: "another"})
    assert SOURCE in shown and "another" not in shown
    assert shown.index(SOURCE) < shown.index("before training")
    assert 'alt="make it &lt;red&gt;, source"' in shown
    assert grid(IMAGES) == grid(IMAGES, {}) and "source" not in grid(IMAGES)


def test_the_source_stands_before_a_pair() -> None:
    shown = gallery_html(PAIR, {3: SOURCE})
    assert shown.index(SOURCE) < shown.index("before training") < shown.index("after 10 iterations")
    assert "source" not in gallery_html(PAIR)


def test_sources_are_read_from_the_prompt_file_as_far_as_it_is_there(tmp_path: Path) -> None:
    prompts = load_prompts("builtin:edits-evaluate")
    found = load_sources("builtin:edits-evaluate", (0, 2))
    assert found.keys() == {0, 2}
    assert np.array_equal(read_source(found[2]), read_source(prompts[2].source))
    assert load_sources("builtin:glyphs-evaluate", (0, 1)) == {}
    assert load_sources(str(tmp_path / "gone.jsonl"), (0,)) == {}


def test_a_large_source_is_scaled_down() -> None:
    large = as_data_uri(np.zeros((40, 80, 3), np.uint8))
    assert read_source(thumbnail(large, 20)).shape == (10, 20, 3)
    assert read_source(thumbnail(large, 100)).shape == (40, 80, 3)
