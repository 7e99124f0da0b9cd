"""Texts of users in tables and lines on a terminal: brackets and colons are printed as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.cli import doctor
from flows.cli.looking import print_whole, show_figures
from flows.cli.preparing import show_profile
from storage.config.run_config import RunConfig
from tests.simulated import small_profile

ROOT = Path(__file__).resolve().parents[3]
TEXTS = ("[bold]signs[/bold]", "a [/closing] tag", "/runs/[2026]", ":smile:")
FIGURES = {"prompts": 1, "score": 0.5, "score_interval": (0, 1), "exact": 0, "exact_interval": (0, 1)}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("text", TEXTS)
def test_every_table_prints_a_text_as_it_is(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor, "_home", lambda: text)
    show_figures(FIGURES | {"by_tag": {text: FIGURES}}, title=f"title {text}")
    print_whole((f"of {text}",), [(f"cell {text}",)])
    show_profile(small_profile().model_copy(update={"summary": text}))
    doctor.examine(RunConfig())
    printed = "\n".join(capsys.readouterr())
    for said in (f"title {text}", f"│ {text}", f"of {text}", f"cell {text}", f"home: {text}"):
        assert said in printed
    assert printed.count(text) >= 6


def test_no_other_console_is_made():
    made = [
        str(path.relative_to(ROOT))
        for room in ("flows", "tasks", "gpu_runtime", "storage", "ui")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\bConsole\(", path.read_text(encoding="utf-8"))
    ]
    assert made == ["flows/output.py"]
