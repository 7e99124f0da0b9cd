"""How long a person waits until a page of the dashboard can be used, in Chromium.

The dashboard is a `spotlight ui` in a separate process. A page can be used once its script has ended and
all its charts and images are drawn; the clock is the browser's, from the navigation on. Every page is
opened at its address, for the first time since the server started: the server has kept nothing of it, and
Python may still have to import what it alone needs. The first page also finds an empty browser.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page

from benchmarks.people.ui_database import LARGE_RUN, Scale, fill, write_home
from benchmarks.report import ROOT
from storage.home import Home
from storage.record.run_store import RunStore
from tests.browser import NewPage, chromium, dashboard

USUAL = Scale(100, 512, 12)
"""A typical run: its pages are those that are opened."""

FIRST_PAGE = "convergence"
"""The page at the address without a path."""

_RUNS = 10
_LIMIT_MS = 60_000
_USABLE = """() => {
    const app = document.querySelector("[data-testid=stApp]");
    const charts = [...document.querySelectorAll("[data-testid=stPlotlyChart]")];
    const usable = app?.dataset.testScriptState === "notRunning"
        && document.querySelector("[data-testid=stMain] [data-testid=stHeading]")
        && !document.querySelector("[data-stale=true], [data-testid=stSkeleton]")
        && charts.every(chart => chart.querySelector(".main-svg .plot, .main-svg .pielayer"))
        && [...document.images].every(image => image.complete);
    const now = performance.now();
    window.usableSince = usable ? window.usableSince ?? now : undefined;
    return usable && now - window.usableSince > 250 ? window.usableSince / 1000 : null;
}"""
"""Seconds from the navigation until the page could be used; null until that has lasted 0.25 s."""


def measure_browser(folder: Path, repeats: int) -> dict[str, Any]:
    """Open every page `repeats` times, each time of a new `spotlight ui`; return the benchmark's figures.

    Args:
        folder: new folder for a home and the log of the dashboard.
        repeats: starts of the dashboard.
    """
    home = Home(folder / "home").ensure()
    store = RunStore(home)
    write_home(store, USUAL)
    fill(store, _RUNS)
    others = sorted({path.parent.name for path in (ROOT / "ui/pages").glob("*/page.py")} - {FIRST_PAGE})
    load = os.getloadavg()[0]
    times: dict[str, list[float]] = {name: [] for name in (FIRST_PAGE, *others)}
    with chromium() as new_page:
        for _ in range(repeats):
            with _opened(home, folder / "ui.log", new_page) as (page, url):
                times[FIRST_PAGE].append(interactive_s(page, f"{url}/?run={LARGE_RUN}"))
                for name in others:
                    times[name].append(interactive_s(page, f"{url}/{name}?run={LARGE_RUN}"))
    by_page = {name: round(float(np.median(found)), 3) for name, found in times.items()}
    rest = [found for name in others for found in times[name]]
    return {
        "first_page_interactive_s": by_page[FIRST_PAGE],
        "first_page_longest_s": round(max(times[FIRST_PAGE]), 3),
        "p95_interactive_s": round(float(np.quantile(rest, 0.95)), 3),
        "slowest_in_browser": max(others, key=lambda name: by_page[name]),
        "interactive_s_by_page": by_page,
        "starts": repeats,
        "usual_run": dataclasses.asdict(USUAL),
        "load_before": round(load, 1),
    }


@contextmanager
def _opened(home: Home, log: Path, new_page: NewPage) -> Iterator[tuple[Page, str]]:
    with dashboard(home.path, log) as served, new_page() as page:
        yield page, served.url


def interactive_s(page: Page, address: str) -> float:
    """Seconds from going to an address until the page there can be used."""
    page.goto(address, wait_until="commit")
    return float(page.wait_for_function(_USABLE, polling=20, timeout=_LIMIT_MS).json_value())
