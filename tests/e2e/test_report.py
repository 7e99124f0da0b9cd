"""The report in a real browser: its plots on screens of any width, light and dark, and on paper."""

from __future__ import annotations

from pathlib import Path

import pypdfium2 as pdfium
import pytest
from playwright.sync_api import Page

from storage.home import Home
from storage.record.run_store import RunStore
from tests.browser import IN_CHROMIUM, Album, NewPage, overprinted
from ui.report.report import write_report

pytestmark = [*IN_CHROMIUM, pytest.mark.xdist_group("recorded")]

PLOTS = 23  # of the run `explored`
TWO_IN_A_ROW_FROM_PX = 1280
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(14, 17, 23)"}
MARGIN_PT = 12 / 25.4 * 72  # 12 mm
PAPER_TITLES = ["Over iterations", "Over time at work", "Over cost", "Over iterations"]
"""A line of the text each: plots that stand beside or over each other share their lines."""
_BOXES = """[...document.querySelectorAll(".js-plotly-plot")].map(plot => {
    const place = plot.getBoundingClientRect(), drawn = plot.querySelector(".main-svg");
    return {left: place.left, top: place.top, right: place.right, bottom: place.bottom, width: place.width,
        drawn: drawn.getBoundingClientRect().width};
})"""


@pytest.fixture(scope="module")
def report(recorded_home: Home, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a run's report."""
    file = tmp_path_factory.mktemp("report") / "explored.html"
    write_report(RunStore(recorded_home), "explored", file)
    return file.as_uri()


def opened(page: Page, address: str) -> list[dict[str, float]]:
    """Open the report and wait for its plots; their boxes, in pixels."""
    page.goto(address)
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot .gtitle').length >= {PLOTS}")
    return page.evaluate(_BOXES)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light"), (1920, "dark")])
def test_every_plot_is_as_wide_as_its_place(
    new_page: NewPage, report: str, album: Album, width: int, scheme: str
):
    with new_page(width=width) as page:
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        boxes = opened(page, report)
        assert [box["drawn"] for box in boxes] == pytest.approx([box["width"] for box in boxes], abs=1)
        for place, box in enumerate(boxes):
            for other in boxes[place + 1 :]:
                beside = box["right"] <= other["left"] or other["right"] <= box["left"]
                assert beside or box["bottom"] <= other["top"] or other["bottom"] <= box["top"]
        rows = {box["top"] for box in boxes}
        assert (len(rows) < PLOTS) == (width >= TWO_IN_A_ROW_FROM_PX)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS[scheme]
        assert overprinted(page) == []
        page.locator("h2", has_text="Devices").scroll_into_view_if_needed()
        if album.folder is not None:
            album.save(page, f"report-{width}-{scheme}.png")
    assert len(boxes) == PLOTS


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_plots_fit_on_paper_and_on_the_screen_again(
    new_page: NewPage, report: str, album: Album, tmp_path: Path, paper: str
):
    file = (album.folder or tmp_path) / f"report-{paper}.pdf"
    with new_page(width=1440) as page:
        page.emulate_media(color_scheme="dark")
        before = opened(page, report)
        page.pdf(path=file, format=paper, print_background=True)
        assert page.evaluate(_BOXES) == before
    titles = []
    for sheet in pdfium.PdfDocument(file):
        width, _ = sheet.get_size()
        text = sheet.get_textpage()
        # Each glyph has its place here, also where the paper's edge cuts it off; spaces have no width.
        glyphs = [text.get_charbox(place) for place in range(text.count_chars())]
        assert all(right <= width - MARGIN_PT + 1 for left, _, right, _ in glyphs if right > left)
        titles += [line for line in text.get_text_range().splitlines() if line in PAPER_TITLES]
        picture = sheet.render().to_pil().convert("L")  # a pixel is a point
        margin = picture.crop((picture.width - round(MARGIN_PT) + 2, 0, *picture.size))
        assert margin.getextrema() == (255, 255), "a dark page is printed on white paper, up to its margin"
    assert titles == PAPER_TITLES
