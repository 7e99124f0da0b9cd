"""The dashboard in a window as narrow as a telephone's, light and dark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from storage.evaluations.reproductions import write_reproduction
from storage.home import Home
from storage.record.run_store import RunStore
from tests.browser import IN_CHROMIUM, Album, NewPage, dashboard, open_page, overprinted
from tests.e2e.test_evaluations_page import evaluate
from tests.e2e.test_reproducibility_page import done

pytestmark = [*IN_CHROMIUM, pytest.mark.xdist_group("recorded")]

WIDTH = 390
SCREENS = 6
"""The most that a page without pictures of every prompt has on a telephone."""

BOXES = "found => found.map(one => one.getBoundingClientRect().toJSON())"
TILES = """[...document.querySelectorAll("[data-testid=stMetric]")].map(tile => {
    const box = tile.getBoundingClientRect();
    const texts = [
        ...tile.querySelectorAll("[data-testid=stMetricValue] *, [data-testid=stMarkdownContainer]")];
    return {top: Math.round(box.top), left: box.left, right: box.right,
        cut: texts.some(text => text.scrollWidth > text.clientWidth + 1)};
})"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "name", "last", "plots", "tiles"),
    [
        ("?run=glyphs-1", "Convergence", "Settings and environment", 8, 10),
        ("seeds?run=explored", "Seeds", "Best and worst seeds of a prompt", 5, 6),
        ("spot?run=explored", "Spot", "The accounts", 3, 6),
        ("cost?run=glyphs-1", "Cost", "Download the figures", 4, 6),
        ("images?run=glyphs-1", "Images", "One prompt, enlarged", 0, 0),
        ("health?run=glyphs-1", "Health", "Not measured", 0, 0),
        ("runs", "Runs", "Time to a score", 2, 0),
        ("what_if", "What if", "Press Simulate", 0, 0),
    ],
)
def test_a_page_on_a_telephone(
    new_page: NewPage, url: str, album: Album, address: str, name: str, last: str, plots: int, tiles: int
):
    with new_page(width=WIDTH, height=844) as page:
        open_page(page, f"{url}/{address}", last, plots)
        named = page.get_by_text(name, exact=True).evaluate_all(BOXES)
        assert any(box["width"] and 0 <= box["x"] < WIDTH and 0 <= box["y"] < 60 for box in named), (
            "in the bar"
        )
        boxes = page.evaluate(TILES)
        rows = Counter(box["top"] for box in boxes)
        assert set(rows.values()) <= {2}
        assert len(boxes) == tiles
        assert all(box["left"] >= 0 and box["right"] <= WIDTH and not box["cut"] for box in boxes)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1000)  # the plots are laid out anew
            assert overprinted(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
        height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        assert height <= SCREENS * 844 or name == "Images", f"{height / 844:.1f} screens"
        album.keep(page, f"phone-{name.lower()}.png")


@pytest.mark.slow
def test_the_pages_without_a_run_fit_on_a_telephone(new_page: NewPage, tmp_path: Path, album: Album):
    store = RunStore(Home(tmp_path / "home").ensure())
    evaluate(store, "before", None, [0.0, 0.5, 0.5])
    evaluate(store, "after", "a-run-with-a-rather-long-name-20261121-101500", [1.0, 0.5, 0.5])
    write_reproduction(store.home, done("a", 1e9, verdict="drifted", message="seed was 0, is 1"))
    with dashboard(store.home.path, tmp_path / "log") as served, new_page(width=WIDTH, height=844) as page:
        for address, name, last in (
            ("evaluations", "Evaluations", "Download the figures"),
            ("reproducibility", "Reproducibility", "drifted"),
        ):
            open_page(page, f"{served.url}/{address}", last, 0)
            page.get_by_test_id("stDataFrame").first.wait_for()  # drawn after the text beside it
            page.wait_for_timeout(1000)  # it takes its width then
            assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
            tables = page.get_by_test_id("stDataFrame").evaluate_all(BOXES)
            assert tables and all(box["left"] >= 0 and box["right"] <= WIDTH for box in tables)
            album.keep(page, f"phone-{name.lower()}.png")


@pytest.mark.slow
def test_a_wide_window_shows_the_name_once(new_page: NewPage, url: str):
    with new_page(width=1280) as page:
        open_page(page, f"{url}/cost?run=glyphs-1", "Download the figures", 4)
        assert not page.locator(".sl-page-name").is_visible()
        assert overprinted(page) == []
        assert len({box["top"] for box in page.evaluate(TILES)}) == 1
