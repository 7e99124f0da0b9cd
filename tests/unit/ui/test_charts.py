"""What all charts share, and what stands below an image."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from storage.record.queries.runs import WorkClock
from tests.colour_vision import contrast, distance, least_distance, luminance
from ui.charts.layout import add_level, laid_out
from ui.elements import palette
from ui.elements.image_grid import gallery_html
from ui.elements.palette import LEVEL_COLOURS, MARKET_COLOURS, RUN_COLOURS, RUN_SYMBOLS, STATE_COLOURS


@pytest.mark.parametrize(
    "figure",
    [
        go.Figure(),
        go.Figure(go.Scatter(x=[], y=[])),
        go.Figure(go.Scatter(x=[1, 2], y=[math.nan, math.nan])),
        go.Figure(go.Bar(x=[], y=["rollout"], orientation="h")),
    ],
)
def test_a_chart_without_figures_has_a_sentence_and_no_axes(figure: go.Figure):
    layout: Any = laid_out(figure, "Title", "Iteration", "Score").layout
    assert (layout.xaxis.visible, layout.yaxis.visible) == (False, False)
    assert [note.text for note in layout.annotations] == ["Nothing is recorded yet."]


def test_a_chart_with_one_figure_has_its_axes():
    layout: Any = laid_out(go.Figure(go.Scatter(x=[0], y=[0.4])), "Title", "Iteration", "Score").layout
    assert layout.xaxis.visible is None
    assert not layout.annotations


def test_a_level_without_a_text_has_none():
    drawn: Any = go.Figure(go.Scatter(x=[0, 1], y=[0.4, 0.5]))
    add_level(drawn, 0.4)
    assert not drawn.layout.annotations
    add_level(drawn, 0.4, "limit")
    assert [note.text for note in drawn.layout.annotations] == ["limit"]


def test_the_verdict_and_the_score_of_an_image_are_told_apart():
    image = {
        "prompt": "two clocks", "seed_index": 0, "iteration_before": 0, "iteration_after": 5,
        "png_before": b"", "png_after": b"", "score_before": 0.5, "score_after": 0.5,
        "exact_before": False, "exact_after": True, "detail_before": "1 clock", "detail_after": "3 clocks",
        "error_before": None, "error_after": None,
    }  # fmt: skip
    shown = gallery_html(pd.DataFrame([image]))
    assert "✗ not exact</span>, score 0.50: 1 clock" in shown
    assert "✓ exact</span>, score 0.50: 3 clocks" in shown
    assert "an exact image and one that is not can have the same score" in shown


UI = Path(__file__).resolve().parents[3] / "ui"
PAGES = {"light": "#ffffff", "dark": "#0e1117"}  # Streamlit's backgrounds, and the report's

STATE_DISTANCE = 20.0
STATE_CONTRAST = 1.25
"""Neighbours in a bar, whatever they are: a bar shows any state beside any other."""
PAGE_CONTRAST = 1.5
TEXT_CONTRAST = 3.0
"""Of words in the colour of a level: WCAG 2 asks this of large or bold text, which names the level."""

RUN_DISTANCE = 10.0
"""Eight runs in one chart leave less room than states; each has a marker shape of its own, too."""


def test_the_measures_agree_with_known_values():
    assert luminance("#ffffff") == pytest.approx(1.0, abs=1e-6)
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0, abs=1e-4)
    # Red against green in CIE Lab (D65): (53.24, 80.09, 67.20) and (87.73, -86.18, 83.18).
    assert distance("#ff0000", "#00ff00") == pytest.approx(170.6, abs=0.1)
    # Greys have no hue to lose.
    assert least_distance("#404040", "#c0c0c0") == pytest.approx(distance("#404040", "#c0c0c0"), abs=0.1)


@pytest.mark.parametrize(
    ("one", "other", "vision"),
    [
        ("#2f80ed", "#7c6fd9", "protanopia"),
        ("#2bb3c0", "#9aa5b1", "protanopia"),
        ("#2f80ed", "#7c6fd9", "deuteranopia"),
        ("#27ae7a", "#2bb3c0", "tritanopia"),
    ],
)
def test_pairs_that_were_too_close_measure_as_too_close(one: str, other: str, vision: str):
    """Rollout and train, regroup and idle, explore and regroup, as versions before this test drew them."""
    assert distance(one, other, vision) < 13 < distance(one, other)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(STATE_COLOURS, 2)])
def test_two_states_beside_each_other_are_told_apart_by_every_eye(one: str, other: str):
    assert least_distance(STATE_COLOURS[one], STATE_COLOURS[other]) >= STATE_DISTANCE
    assert contrast(STATE_COLOURS[one], STATE_COLOURS[other]) >= STATE_CONTRAST


def test_the_markets_are_told_apart_by_every_eye():
    reserved, spot = MARKET_COLOURS.values()
    assert least_distance(reserved, spot) >= 30
    assert contrast(reserved, spot) >= 2


@pytest.mark.parametrize("market", MARKET_COLOURS)
@pytest.mark.parametrize("state", STATE_COLOURS)
def test_no_market_looks_like_a_state(state: str, market: str):
    assert distance(STATE_COLOURS[state], MARKET_COLOURS[market]) >= 25
    assert least_distance(STATE_COLOURS[state], MARKET_COLOURS[market]) >= 10


@pytest.mark.parametrize("background", PAGES)
@pytest.mark.parametrize("colour", [*STATE_COLOURS.values(), *MARKET_COLOURS.values()])
def test_states_and_markets_stand_out_from_the_page(colour: str, background: str):
    assert contrast(colour, PAGES[background]) >= PAGE_CONTRAST


def test_runs_are_told_apart_by_colour_and_by_shape():
    assert len(set(RUN_SYMBOLS)) == len(RUN_SYMBOLS) == len(RUN_COLOURS)
    for one, other in itertools.combinations(RUN_COLOURS, 2):
        assert least_distance(one, other) >= RUN_DISTANCE
    for colour, background in itertools.product(RUN_COLOURS, PAGES.values()):
        assert contrast(colour, background) >= 1.75


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(LEVEL_COLOURS, 2)])
def test_levels_are_told_apart_by_every_eye(one: str, other: str):
    """As far apart as states, although a word names each level beside its colour."""
    assert least_distance(LEVEL_COLOURS[one], LEVEL_COLOURS[other]) >= STATE_DISTANCE


@pytest.mark.parametrize("background", PAGES)
@pytest.mark.parametrize("level", LEVEL_COLOURS)
def test_levels_can_be_read_on_the_page(level: str, background: str):
    assert contrast(LEVEL_COLOURS[level], PAGES[background]) >= TEXT_CONTRAST


def test_degrees_become_darker():
    brightness = [luminance(colour) for colour in palette.DEGREE_COLOURS]
    assert brightness == sorted(brightness, reverse=True)
    for one, other in itertools.pairwise(palette.DEGREE_COLOURS):
        assert contrast(one, other) >= STATE_CONTRAST


def test_no_colour_has_two_meanings():
    written = re.findall(r'"(#[0-9a-f]{6})"', (UI / "elements" / "palette.py").read_text(encoding="utf-8"))
    assert len(written) == len(set(written))
    others = (palette.SCORE_COLOUR, palette.SAMPLES_COLOUR, palette.DRAFT_COLOUR, palette.REFERENCE_COLOUR)
    for colour, own in itertools.product(others, [*STATE_COLOURS.values(), *MARKET_COLOURS.values()]):
        assert distance(colour, own) >= 20, (colour, own)


def test_colours_are_written_in_the_palette_only():
    """Those of the page itself, its background and its text, are the report's style sheet's."""
    found = {
        f"{path.relative_to(UI)}: {colour}"
        for path in UI.rglob("*.py")
        if path.name != "palette.py"
        for colour in re.findall(r"#[0-9a-fA-F]{6}\b", path.read_text(encoding="utf-8"))
    }
    assert {entry for entry in found if not entry.startswith("report/html_page.py")} == set()
    page = {entry.rpartition(" ")[2] for entry in found}
    assert page <= {"#ffffff", "#1c2430", "#0e1117", "#e6e9ee"}


def times(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def test_long_breaks_are_left_out_and_moments_in_them_are_at_the_break():
    clock = WorkClock(pd.DataFrame({"started_at": times(1000, 0, 5), "ended_at": times(1010, 10, 20)}), 30.0)
    assert clock.total_s == 30
    assert clock.breaks_s.tolist() == [20]
    assert clock.elapsed_s(times(-5, 0, 12, 20, 500, 1000, 1004, 2000)).tolist() == [
        0, 0, 12, 20, 20, 20, 24, 30,
    ]  # fmt: skip


def test_short_holes_stay_visible():
    clock = WorkClock(pd.DataFrame({"started_at": times(0, 30), "ended_at": times(10, 40)}), 30.0)
    assert clock.breaks_s.size == 0
    assert clock.elapsed_s(times(20, 30)).tolist() == [20, 30]


def test_an_interval_inside_another_ends_nothing():
    clock = WorkClock(pd.DataFrame({"started_at": times(0, 10, 140), "ended_at": times(120, 20, 150)}), 30.0)
    assert clock.breaks_s.size == 0
    assert clock.total_s == 150
