"""Numbers as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ui.elements.formatting import (
    chart_text,
    duration,
    figure,
    fine_percent,
    markdown_text,
    percent,
    plain_markdown,
    short_duration,
    usd,
)


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
