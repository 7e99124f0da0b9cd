"""The dashboard in a real browser: `spotlight ui`, headless chromium, pictures of every page."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from playwright.sync_api import expect

from tests.browser import IN_CHROMIUM, Album, NewPage, await_plots, dashboard, open_page

pytestmark = [*IN_CHROMIUM, pytest.mark.xdist_group("recorded")]


_ROW_PX = 35
_CELL_PX = 150
_CLICKS = 5
_AFTER_CLICK_MS = 20_000
_STOP_BUTTON = """() => {
    const widget = document.createElement("div");
    widget.dataset.testid = "stStatusWidget";
    const button = widget.appendChild(document.createElement("button"));
    document.body.appendChild(widget);
    const display = getComputedStyle(button).display;
    widget.remove();
    return display;
}"""
"""What Streamlit shows while it draws a page, which is too short a time to look at."""

_DRAWN = "Settings and environment", 8
"""The last text of a run's first page, and the number of its plots."""


def test_a_run_is_shown_with_scores_charts_and_images(new_page: NewPage, url: str, album: Album):
    with new_page() as page:
        open_page(page, f"{url}/?run=glyphs-1", *_DRAWN)
        body = page.locator("body")
        for text in (
            re.escape("Better: score 0.38 → 0.84 (+0.46 ± 0.08)"),
            r"Iterations\s+40 of 40", r"Score now\s+0\.8\d\d",
        ):  # fmt: skip
            expect(body).to_contain_text(re.compile(text), use_inner_text=True)
        titles = page.locator(".js-plotly-plot .gtitle").all_text_contents()
        assert titles == [
            "Over iterations",
            "Distance to the rendered picture", "Looks of the images", "Variety of the images",
            "Prompts without signal", "Ratio deviation at the first update", "KL to the reference policy",
            "Clipped denoising steps",
        ]  # fmt: skip
        held_out = page.locator(".js-plotly-plot").first.locator(".scatterlayer .points path")
        assert held_out.count() == 5, "five held-out evaluations, each with its marker"
        pictures = page.locator(".sl-grid img")
        assert pictures.count() == 24, "twelve prompts, before and after"
        assert pictures.first.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [48, 24]
        assert page.locator(".sl-good").count() > 0
        page.get_by_text("Exact matches", exact=True).click()
        page.locator(".ytitle", has_text="Exact matches (share)").first.wait_for()
        colours = album.photograph(page, "sample-convergence.png")
    assert colours > 300


@pytest.mark.slow
def test_a_run_stays_chosen_between_pages(new_page: NewPage, url: str, album: Album):
    with new_page() as page:
        open_page(page, f"{url}/seeds?run=explored", "Best and worst seeds of a prompt", 5)
        circles = page.locator(".js-plotly-plot").first.locator(".scatterlayer .points path")
        assert circles.count() > 10
        colours = album.photograph(page, "sample-seeds.png")
        open_page(page, f"{url}/?run=glyphs-1", *_DRAWN)  # not the newest
        page.get_by_text("Seeds", exact=True).first.click()
        page.get_by_text("This run does not explore").wait_for()
        assert "glyphs-1" in page.inner_text("h2")
        assert page.url.endswith("/seeds?run=glyphs-1")
        page.get_by_text("Convergence", exact=True).first.click()
        page.get_by_text("Settings and environment").wait_for()
        assert "glyphs-1" in page.inner_text("h2")
    assert colours > 300


@pytest.mark.slow
def test_a_new_user_asks_what_a_run_would_cost_and_gets_a_table(
    new_page: NewPage, tmp_path: Path, album: Album
):
    with dashboard(tmp_path / "home", tmp_path / "log") as served, new_page() as page:
        page.goto(served.url)
        page.get_by_text("No runs yet").wait_for()
        page.get_by_text("What if", exact=True).first.click()
        page.get_by_test_id("stBaseButton-primaryFormSubmit").click()
        page.get_by_role("progressbar").first.wait_for()
        page.get_by_text("Download the figures").wait_for()
        text = page.inner_text("body")
        assert "for 40 iterations on 4 reserved and 8 spot devices, " in text
        album.keep(page, "what-if.png")
        for folded in ("Policies compared", "Time line and ledger of a run"):
            page.get_by_text(folded).click()
        await_plots(page, "Download the figures", plots=5)
        assert page.get_by_test_id("stDataFrame").count() == 2, "policies, and their milestones"
        titles = page.locator(".js-plotly-plot .gtitle").all_text_contents()
        assert len(titles) == 5 and all(title.endswith("(simulated)") for title in titles)
        bars = page.locator(".js-plotly-plot").nth(1).locator(".barlayer .point path")
        assert bars.count() >= 3 * 12, "three iterations of twelve devices"
        colours = album.photograph(page, "sample-what-if.png")
        page.get_by_role("spinbutton", name="Goal: finish within (hours)").fill("8")
        page.get_by_test_id("stBaseButton-primaryFormSubmit").click()
        # Of a page that is still being drawn, a field's new value may be lost.
        await_plots(page, "spot devices a run ends within 8 h: ", plots=0)
        assert "hours=8" in page.url and "simulate=1" in page.url, "an address that gives the answer again"
        page.get_by_text("More", exact=True).click()
        page.get_by_role("spinbutton", name="Trainers").fill("9")
        page.get_by_test_id("stBaseButton-primaryFormSubmit").click()
        page.get_by_text("runtime.trainer_workers is 9, above runtime.reserved_workers=4").wait_for()
        expect(page.get_by_test_id("stDataFrame")).to_have_count(0)
    assert colours > 300
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_click_on_a_run_opens_it(new_page: NewPage, url: str):
    with new_page() as page:
        open_page(page, f"{url}/runs", "Time to a score", 2)
        opened = page.get_by_text("Settings and environment")
        table = page.get_by_test_id("stDataFrame").first
        for attempt in range(_CLICKS):  # the table takes none while it is still being drawn
            with suppress(PlaywrightTimeout):  # no table is left where the click before was taken late
                place = table.bounding_box(timeout=_AFTER_CLICK_MS)
                assert place is not None
                # The older run, below the head. Another cell each time: a second click on one says no more.
                page.mouse.click(place["x"] + 60 + attempt * _CELL_PX, place["y"] + 2.5 * _ROW_PX)
                opened.wait_for(timeout=_AFTER_CLICK_MS)
                break
        opened.wait_for()
        assert "glyphs-1" in page.inner_text("h2")
        assert page.url.endswith("?run=glyphs-1")


@pytest.mark.slow
def test_the_report_is_downloaded_and_leads_back_to_the_run(new_page: NewPage, url: str, tmp_path: Path):
    with new_page() as page:
        open_page(page, f"{url}/seeds?run=glyphs-1", "This run does not explore", 0)
        with page.expect_download() as downloaded:
            page.get_by_role("button", name="Report").click()
        file = tmp_path / downloaded.value.suggested_filename
        downloaded.value.save_as(file)
        assert file.name == "glyphs-1-report.html"
        page.goto(file.as_uri())
        back = page.get_by_role("link", name="Dashboard").get_attribute("href")
        assert back is not None
        assert back == f"{url}/?run=glyphs-1"
        open_page(page, back, *_DRAWN)


@pytest.mark.slow
def test_an_image_is_enlarged_and_the_page_of_no_run_has_no_button_stop(new_page: NewPage, url: str):
    """The other pages are drawn in `test_prefect_ui.py`, of a real run, and in `test_phone.py`."""
    with new_page() as page:
        open_page(page, f"{url}/images?run=glyphs-1", "One prompt, enlarged", 0)
        picture = page.locator(".sl-zoom").first
        small = picture.locator("img").bounding_box()
        picture.locator("summary").click()
        large = picture.locator("img").bounding_box()
        assert small and large and large["width"] > 2 * small["width"]
        page.goto(f"{url}/spot?run=no-such-run")
        page.get_by_text("No such run").wait_for()
        # A button Stop that is not the run's would be Streamlit's.
        page.wait_for_function(f"({_STOP_BUTTON})() === 'none'")


@pytest.mark.slow
def test_ending_the_command_ends_the_server(tmp_path: Path):
    """Also where nobody presses Ctrl-C: a service manager sends SIGTERM, the kernel kills."""
    with dashboard(tmp_path / "home", tmp_path / "log") as served:
        servers = psutil.Process(served.process.pid).children()
        assert len(servers) == 1
        served.process.kill()
        _, left = psutil.wait_procs(servers, timeout=60)
        assert left == []


@pytest.mark.slow
def test_the_port_of_another_is_refused(url: str):
    port = url.rsplit(":", 1)[1]
    answer = subprocess.run(
        [sys.executable, "-m", "flows.cli.command_line", "ui", "--port", port],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert answer.returncode == 2
    message = " ".join(answer.stderr.split())
    assert f"port {port} on 127.0.0.1 is in use" in message
    assert "choose another with `spotlight ui --port`" in message
