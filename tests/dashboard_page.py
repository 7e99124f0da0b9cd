"""A page of the dashboard as AppTest runs it, and what a person reads on it."""

from __future__ import annotations

import json
from pathlib import Path

from streamlit.testing.v1 import AppTest

from ui.data import run
from ui.pages.runs import data as runs

UI = Path(__file__).resolve().parents[1] / "ui"

CACHE_S = 2.2
"""Seconds after which a page reads the database again."""


def read_anew() -> None:
    """As after `CACHE_S`: pages read again what they keep for so long; what they keep longer, they keep."""
    of_runs = (runs.load_table, runs.load_compared)
    for kept in (run.load_overview, run.load_run, run.load_activity, *of_runs):
        kept.clear()


def opened_page(shown: str | Path, **query: str) -> AppTest:
    """A page, such as `spot` or that of a file, opened at an address with such a query.

    AppTest does not follow the entrance's navigation, which `tests/e2e/test_browser.py` does.
    """
    file = UI / "pages" / shown / "page.py" if isinstance(shown, str) else shown
    page = AppTest.from_file(str(file), default_timeout=280)
    for name, value in query.items():
        page.query_params[name] = value
    return ran(page)


def ran(page: AppTest) -> AppTest:
    """The page, run once more."""
    page.run()
    assert not page.exception, page.exception
    return page


def figures(page: AppTest) -> dict[str, str]:
    """The tiles by their title, without its badge."""
    return {metric.label.partition(" :")[0]: metric.value for metric in page.metric}


def sentences(page: AppTest) -> str:
    """The coloured boxes at the top, in one text."""
    return "\n".join(box.value for box in [*page.success, *page.info, *page.error, *page.warning])


def captions(page: AppTest) -> str:
    """The small texts, in one."""
    return "\n".join(caption.value for caption in page.caption)


def titles(page: AppTest) -> list[str]:
    """The titles of the page's charts."""
    specs = [json.loads(chart.proto.spec) for chart in page.get("plotly_chart")]
    return [spec["layout"]["title"]["text"] for spec in specs]


def pictures(page: AppTest) -> str:
    """The HTML of the page's pictures."""
    return next(element.proto.body for element in page.get("html") if "sl-grid" in element.proto.body)
