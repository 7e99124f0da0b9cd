"""Numbers as people read them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from storage.prompts.files import load_prompts
from storage.prompts.sources import as_data_uri, read_source, thumbnail
from storage.text import file_stem, usd
from ui.data.run import load_sources
from ui.elements.formatting import (
    chart_text,
    duration,
    ending_in_words,
    figure,
    fine_percent,
    markdown_text,
    percent,
    plain_markdown,
    short_duration,
)
from ui.elements.image_grid import course_html, evaluation_html, gallery_html, large_html
from ui.elements.widgets import as_file


@pytest.mark.parametrize(
    ("seconds", "text", "short"),
    [
        (0, "0 s", "0.0 s"),
        (9.4, "9 s", "9.4 s"),
        (59.7, "1 min 0 s", "59.7 s"),
        (765, "12 min 45 s", "12.8 min"),
        (12000, "3 h 20 min", "3.3 h"),
    ],
)
def test_durations(seconds: float, text: str, short: str):
    assert duration(seconds) == text
    assert short_duration(seconds) == short


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (1234.5, "$1,234.50"),
        (0.34, "$0.34"),
        (0.0085, "$0.0085"),
        (0.00012345, "$0.00012"),
        (1e-12, "$0.00"),
    ],
)
def test_dollars(amount: float, text: str):
    assert usd(amount) == text


def test_shares_and_figures():
    assert [percent(x) for x in (0, 0.004, 0.5, 1)] == ["0 %", "0.4 %", "50 %", "100 %"]
    assert [fine_percent(x) for x in (0, 1.9e-10, 0.00012, 0.5)] == ["0 %", "< 0.001 %", "0.012 %", "50 %"]
    assert [figure(x) for x in (0, 0.5, 4.3e-7, 12345.0, float("nan"))] == [
        "0",
        "0.5",
        "4.3e-07",
        "1.2e+04",
        "-",
    ]
    assert markdown_text("$5 to $6") == r"\$5 to \$6"


def test_only_a_bare_signal_is_put_in_words():
    assert ending_in_words("KeyboardInterrupt") == "it was stopped with Ctrl-C"
    assert ending_in_words("KeyboardInterrupt: in the loader") == "KeyboardInterrupt: in the loader"


def test_text_of_others_keeps_its_code_and_loses_its_markup():
    text = "set `runtime.lease_s` to *more* than $5, see [this](http://x) <b>"
    assert plain_markdown(text) == (
        r"set `runtime.lease_s` to \*more\* than \$5, see \[this\](http://x) \<b\>"
    )
    assert plain_markdown("one ` alone") == r"one \` alone"
    assert chart_text("<b>a</b> & b") == "&lt;b&gt;a&lt;/b&gt; &amp; b"


@given(st.text("`*_[]()!<>\\#|~$&;ab:/= ", max_size=40))
def test_no_text_of_others_becomes_a_link_a_picture_or_a_tag(text: str):
    shown = MarkdownIt("commonmark").render("x " + plain_markdown(text) + " x")
    tags = re.findall(r"<(/?\w+)", shown)
    assert set(tags) <= {"p", "/p", "code", "/code"}, shown


FRAME = pd.DataFrame({"prompt": ['a "sign", red', "<b>ü</b>"], "score": [0.25, None], "png": [b"x", b"y"]})


@pytest.mark.parametrize(("form", "read"), [("CSV", pd.read_csv), ("Parquet", pd.read_parquet)])
def test_a_file_comes_back_as_it_was_without_pictures(form: str, read):
    back = read(io.BytesIO(as_file(FRAME, form)))
    pd.testing.assert_frame_equal(back, FRAME.drop(columns="png"), check_dtype=False)


@pytest.mark.parametrize(
    ("run_id", "stem"),
    [
        ("glyphs-1", "glyphs-1-held-out-scores"),
        ("../../etc/passwd", "etc-passwd-held-out-scores"),
        ("a/b\\c\nd", "a-b-c-d-held-out-scores"),
        ("..", "held-out-scores"),
    ],
)
def test_a_files_name_has_no_path_in_it(run_id: str, stem: str):
    assert file_stem(f"{run_id}-held-out scores") == stem


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
