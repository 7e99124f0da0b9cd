"""A page's figures as files."""

from __future__ import annotations

import io

import pandas as pd
import pytest

from storage.text import file_stem
from ui.elements.widgets import as_csv, as_parquet

FRAME = pd.DataFrame({"prompt": ['a "sign", red', "<b>ü</b>"], "score": [0.25, None], "png": [b"x", b"y"]})


def test_csv_comes_back_as_it_was_without_pictures():
    back = pd.read_csv(io.BytesIO(as_csv(FRAME)))
    pd.testing.assert_frame_equal(back, FRAME.drop(columns="png"), check_dtype=False)


def test_parquet_comes_back_as_it_was_without_pictures():
    back = pd.read_parquet(io.BytesIO(as_parquet(FRAME)))
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
