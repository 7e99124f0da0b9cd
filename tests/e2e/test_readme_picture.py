"""The README's picture of images before and after training is drawn from any recorded run."""

from __future__ import annotations

import base64
import io
import re
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

from storage.errors import StorageError
from storage.home import Home
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run

SCRIPT = str(Path(__file__).resolve().parents[2] / "docs" / "before_after.py")

pytestmark = pytest.mark.slow


def draw(home: Home, file: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    monkeypatch.setattr(sys, "argv", [SCRIPT, "r", str(file)])
    runpy.run_path(SCRIPT, run_name="__main__")
    return file.read_text(encoding="utf-8")


def test_four_prompts_are_wrong_before_and_right_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = Home(tmp_path)
    write_sample_run(RunStore(home), "r", iterations=40)
    picture = draw(home, tmp_path / "pairs.svg", monkeypatch)
    assert re.findall(r">(before|after): score ([\d.]+)<", picture)[1::2] == [("after", "1.00")] * 4
    assert all(
        float(s) < 1
        for side, s in re.findall(r">(before|after): score ([\d.]+)<", picture)
        if side == "before"
    )
    pngs = [base64.b64decode(text) for text in re.findall(r"base64,([^\"]+)\"", picture)]
    assert len(pngs) == len(set(pngs)) == 8
    assert all(Image.open(io.BytesIO(png)).format == "PNG" for png in pngs)


def test_a_run_that_has_learned_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = Home(tmp_path)
    write_sample_run(RunStore(home), "r", iterations=1)
    with pytest.raises(StorageError, match="run r has no held-out image that is wrong at first and right"):
        draw(home, tmp_path / "pairs.svg", monkeypatch)
