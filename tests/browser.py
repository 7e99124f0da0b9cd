"""A real browser: headless chromium, the dashboard of a `spotlight ui` in it, and pictures of pages."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.running_up import ROOT, free_port

START_LIMIT_S = 120.0
_PATIENCE_S = 120.0
"""For anything on a page: a busy machine draws slowly, and nothing is judged by it."""

_COLOURS = 256  # of a kept picture: as good to look at, and a third as large
_NAMED_ADDRESSES = "[...document.querySelectorAll('link[href], [src]')].map(one => one.href || one.src)"
_OVERPRINTED = """() => [...document.querySelectorAll(".js-plotly-plot")].flatMap(plot => {
    const whole = plot.getBoundingClientRect(), title = plot.querySelector(".gtitle")?.textContent;
    const parts = [".gtitle", ".xtitle", ".ytitle", ".legend"]
        .map(name => [name, plot.querySelector(name)?.getBoundingClientRect()])
        .filter(([, box]) => box && box.width > 0);
    const left = parts.filter(([, box]) => box.left < whole.left - 1 || box.right > whole.right + 1
        || box.top < whole.top - 1 || box.bottom > whole.bottom + 1);
    const pairs = parts.flatMap(([one, a], place) => parts.slice(place + 1)
        .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1
            && b.top < a.bottom - 1)
        .map(([other]) => `${title}: ${one} over ${other}`));
    return [...left.map(([name]) => `${title}: ${name} leaves its plot`), ...pairs];
})"""
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


NewPage = Callable[..., AbstractContextManager[Page]]


def find_chromium() -> str | None:
    """Path of an installed chromium, of the one without windows first; None where there is none."""
    names = (
        "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
    )  # fmt: skip
    return next((found for name in names if (found := shutil.which(name))), None)


IN_CHROMIUM = (
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine"),
)
"""Marks of tests that need one."""


@dataclass(frozen=True)
class Dashboard:
    """A running `spotlight ui`: its address and its process."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def dashboard(home: Path, log: Path, port: int | None = None) -> Iterator[Dashboard]:
    """Serve the dashboard of a home, and end it afterwards."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli.command_line", "ui", "--port", str(port)],
            cwd=ROOT, env=os.environ | {"SPOTLIGHT_HOME": str(home)},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            _await(f"{url}/_stcore/health", process, log)
            yield Dashboard(url, process)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def chromium() -> Iterator[NewPage]:
    """A headless chromium; what it yields opens a page of it, apart from those before.

    Its loop holds the thread: `asyncio.run` does not work meanwhile.

    Raises:
        FileNotFoundError: there is no chromium on this machine.
    """
    path = find_chromium()
    if path is None:
        raise FileNotFoundError("no chromium on the path; install it (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield partial(_page, browser)
        finally:
            browser.close()


@contextmanager
def _page(browser: Browser, width: int = 1400, height: int = 1000, alone: bool = True) -> Iterator[Page]:
    """A page in a window of its own; if `alone`, it asks no other machine for anything and has no error."""
    with browser.new_context(viewport={"width": width, "height": height}) as context:
        page = context.new_page()
        page.set_default_timeout(_PATIENCE_S * 1000)
        expect.set_options(timeout=_PATIENCE_S * 1000)
        asked: set[str] = set()
        errors: list[str] = []
        page.on("request", lambda request: asked.add(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        # A browser without windows does not ask for the icon in a window's title: the page names it.
        asked |= set(page.evaluate(_NAMED_ADDRESSES))
        foreign = sorted(
            address
            for address in asked
            if (parts := urlsplit(address)).scheme not in ("data", "blob", "about", "file")
            and parts.hostname not in ("127.0.0.1", "localhost")
        )
        assert not (alone and foreign), f"the page asked other machines: {foreign}"
        assert not (alone and errors), errors


def open_page(page: Page, address: str, last: str, plots: int) -> None:
    """Open a page by its whole address and wait until the text that comes last and all plots are drawn."""
    page.goto(address)
    await_plots(page, last, plots)


def await_plots(page: Page, last: str, plots: int) -> None:
    """Wait until the text that comes last on a page and all its plots are drawn."""
    page.get_by_text(last).first.wait_for(timeout=START_LIMIT_S * 1000)
    # Plotly draws after the rest; a plot has its lines once it has a title.
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot .gtitle').length >= {plots}")
    page.wait_for_function("[...document.images].every(image => image.complete && image.naturalWidth)")
    # The script of a kind of element, metrics for one, is loaded when a page first has one.
    page.wait_for_function(
        "!document.querySelector('[data-testid=stStatusWidget], [data-testid=stSkeleton], [data-stale=true]')"
    )


def overprinted(page: Page) -> list[str]:
    """Titles, axis titles and legends of plots that overlap or leave their plot, each as a sentence."""
    return page.evaluate(_OVERPRINTED)


@dataclass(frozen=True)
class Album:
    """Pictures of pages, kept in a folder; without one, only those are taken whose colours are counted."""

    folder: Path | None

    def keep(self, page: Page, name: str, at_most_px: int | None = None) -> None:
        """Photograph a page if pictures are kept."""
        if self.folder is not None:
            self.photograph(page, name, at_most_px)

    def photograph(self, page: Page, name: str, at_most_px: int | None = None) -> int:
        """Picture a page of the dashboard; one that is kept also `-dark`, as on a system with dark windows.

        Args:
            page: what to photograph; all of it, so the window is made as high as what it shows.
            name: of the file; PNG.
            at_most_px: what is further down than this is left out.

        Returns:
            How many different colours the light picture has: hundreds, where its plots are drawn.
        """
        shown = int(page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight"))
        size = page.viewport_size
        assert size is not None
        page.set_viewport_size({"width": size["width"], "height": min(shown, at_most_px or shown)})
        if self.folder is not None:
            page.emulate_media(color_scheme="dark")
            page.wait_for_timeout(1000)  # the plots are laid out again
            stem, _, ending = name.rpartition(".")
            self.save(page, f"{stem}-dark.{ending}")
            page.emulate_media(color_scheme="light")
        page.wait_for_timeout(1000)
        return self.save(page, name)

    def save(self, page: Page, name: str) -> int:
        """Picture what the window shows, in few enough colours for a document; as `photograph` otherwise."""
        whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        if self.folder is not None:
            few = whole.quantize(_COLOURS, dither=Image.Dither.NONE)
            few.save(self.folder / name, optimize=True)
        return len(whole.getcolors(whole.width * whole.height) or [])


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the dashboard did not start: {log.read_text(errors='replace')[-2000:]}")
