"""Texts of users in tables and lines on a terminal: brackets and colons are printed as they are."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli import doctor
from flows.cli.looking import print_whole, show_figures
from flows.cli.preparing import show_profile
from flows.progress import Reporter
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
    doctor.examine()
    printed = "\n".join(capsys.readouterr())
    for said in (f"title {text}", f"│ {text}", f"of {text}", f"cell {text}", f"home: {text}"):
        assert said in printed
    assert printed.count(text) >= 6


@pytest.mark.parametrize("text", TEXTS)
def test_a_note_and_a_stage_print_a_text_as_it_is(text: str):
    screen = io.StringIO()
    reporter = Reporter(Console(file=screen, width=120, force_terminal=True, color_system=None))
    reporter.note(f"note {text}")
    with reporter.stage(f"stage {text}"):
        pass
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert f"note {text}\n" in shown and f"stage {text} ..." in shown and f"s  stage {text}\n" in shown


def test_no_other_console_is_made():
    made = [
        str(path.relative_to(ROOT))
        for room in ("flows", "tasks", "gpu_runtime", "storage", "ui")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\bConsole\(", path.read_text(encoding="utf-8"))
    ]
    assert made == ["flows/terminal.py"]
