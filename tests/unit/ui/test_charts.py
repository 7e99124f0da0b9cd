"""What all charts share, and what stands below an image."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from ui.charts.layout import add_level, laid_out
from ui.elements.image_grid import gallery_html


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
