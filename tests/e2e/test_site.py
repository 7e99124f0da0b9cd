"""The documents as a site: built without a warning, and read without a network or a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import ROOT, NewPage, find_chromium

pytestmark = pytest.mark.slow

_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=\"?([^\s\">]+)"
    r"|<link\b(?=[^>]*rel=\"?(?:stylesheet|icon|preload|preconnect|modulepreload))[^>]*?\bhref=\"?([^\s\">]+)"
)
_LOADED_BY_STYLES = re.compile(r"@import\s+[\"']?([^\"';]+)|url\([\"']?([^)\"']+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    answer = subprocess.run(build, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder


def test_it_starts_with_the_readme(site: Path):
    start = (site / "index.html").read_text(encoding="utf-8")
    assert "RL post-training" in start
    assert "Spotlight post-trains" in start and "before-after.svg" in start


def test_no_page_names_another_host_for_what_it_loads(site: Path):
    named = [
        (page.name, address)
        for suffix, pattern in (("html", _LOADED), ("css", _LOADED_BY_STYLES))
        for page in site.rglob(f"*.{suffix}")
        for found in pattern.findall(page.read_text(encoding="utf-8"))
        for address in found
        if address
    ]
    assert ("index.html", "javascripts/iframe-worker.js") in named
    assert [one for one in named if re.match(r"(https?:)?//", one[1])] == []


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine")
def test_a_page_that_is_opened_as_a_file_can_be_searched(site: Path, new_page: NewPage):
    with new_page() as page:  # fails if it asks another machine for anything
        page.goto((site / "index.html").as_uri())
        # Key by key: the search reacts to key events, and `fill` sends none.
        page.get_by_role("textbox", name="Search").press_sequentially("preemption")
        found = page.locator(".md-search-result__item a").first
        found.wait_for()
        found.click()
        expect(page.locator("article")).to_contain_text("preempt")
