"""Plain lines where nobody watches, a bar where someone does."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from flows.progress import Reporter
from tests.documents import demo_s_end, form
from tests.sample_run import evaluation_record, iteration_record
from tests.unit.flows.test_texts_on_a_terminal import TEXTS


def told(terminal: bool, begun_after: int = 0) -> str:
    """All that a run of three iterations prints."""
    screen = io.StringIO()
    reporter = Reporter(Console(file=screen, force_terminal=terminal, width=120, color_system=None))
    reporter.begin("glyphs-1", 3, begun_after)
    for iteration in range(begun_after + 1, 4):
        reporter.iteration(iteration_record("glyphs-1", iteration, 0.0))
    reporter.evaluation(evaluation_record("glyphs-1", 3, 0.0, images=8, gallery=0), 2)
    reporter.end()
    return screen.getvalue()


def test_plain_lines_without_a_terminal():
    lines = told(terminal=False).splitlines()
    assert lines[0] == "run glyphs-1: iteration 0 of 3"
    for number, line in enumerate(lines[1:4], 1):
        assert re.fullmatch(rf"\[ .* s\] iteration {number}/3: reward 0\..*18\.0 s", line)
    assert re.fullmatch(
        r"held-out after iteration 3: score 0\..* over the 2 prompts of each evaluation \(8 images\)",
        lines[4],
    )
    assert len(lines) == 5 and "\x1b" not in "".join(lines)


def test_a_bar_on_a_terminal():
    text = told(terminal=True)
    assert "━" in text
    assert "3/3" in text
    assert "iteration 1/3:" not in text, "the bar takes the place of a line an iteration"
    assert "held-out after iteration 3" in text
    assert text.endswith("\x1b[?25h"), "the cursor is shown again"


def test_the_readme_shows_the_bar_with_which_a_demo_ends():
    """`tests/integration/test_contacts.py` compares the other lines with a real demo's."""
    screen, shown = io.StringIO(), demo_s_end()
    narrow = Console(file=screen, force_terminal=True, width=len(shown[0]), color_system=None)
    reporter = Reporter(narrow)
    reporter.begin("demo", 20, 0)
    reporter.phase("evaluate")
    reporter.iteration(iteration_record("demo", 20, 0.0))
    reporter.end()
    bar = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).strip().splitlines()[-1]
    assert len(shown) == 8
    assert form(bar.strip()) == form(shown[0])


def test_a_resumed_run_goes_on_counting():
    assert "iteration 2 of 3" in told(terminal=False, begun_after=2)
    assert "3/3" in told(terminal=True, begun_after=2)


def test_the_time_left_is_told_where_an_iteration_takes_minutes():
    """Rich itself forgets what is older than 30 s."""
    screen, clock = io.StringIO(), [0.0]
    console = Console(
        file=screen, force_terminal=True, width=80, color_system=None, get_time=lambda: clock[0]
    )
    reporter = Reporter(console)
    reporter.begin("glyphs-1", 3, 0)
    clock[0] = 300.0
    reporter.iteration(iteration_record("glyphs-1", 1, 0.0))
    reporter.end()
    assert "1/3 0:10:00 left" in screen.getvalue(), "whole also at 80 columns"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("text", [*TEXTS, "x" * 300])
def test_notes_and_parts_of_the_start_with_their_time_are_printed_as_they_are(text: str, terminal: bool):
    screen = io.StringIO()
    reporter = Reporter(Console(file=screen, force_terminal=terminal, width=400, color_system=None))
    reporter.note(f"note {text}")
    with reporter.stage(f"stage {text}"):
        pass
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert f"note {text}\n" in shown and f"s  stage {text}\n" in shown
    assert (f"stage {text} ..." in shown) == terminal
    with pytest.raises(ValueError), reporter.stage("start nothing"):
        raise ValueError
    assert " s  start nothing" not in screen.getvalue()
