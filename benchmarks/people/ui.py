"""Time to render each page of the dashboard for a large run.

A home is generated: one run of 1,000 iterations x 512 samples x 64 devices, two that differ from it in the
seed, one of 10,000 iterations, and short ones. Streamlit's AppTest renders every page in this process,
several times with empty caches (a first visit) and once more with warm ones (a reload): for the large and the
long run in a home of 10 runs, and for the large one in a home of 1,000. `growth_10_to_1000` is the time of
all pages in the last over that in the first. One-time work of a server is excluded: imports, the first
reading of each run's description (`run.json`), and AppTest's scan of the installed packages for components.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from streamlit.testing.v1 import AppTest

from benchmarks.people.ui_database import (
    LARGE_RUN,
    LONG_RUN,
    Scale,
    fill,
    row_counts,
    write_home,
    write_long_run,
)
from benchmarks.report import ROOT, finish, options
from storage.home import HOME_VARIABLE, Home
from storage.record.run_store import RunStore

_PAGES = ROOT / "ui" / "pages"
_LIMIT_S = 600.0  # per rendering, so that a hanging page ends the benchmark


def main() -> None:
    """Generate, render, print."""
    parser = options(__doc__, "60 iterations x 128 samples x 16 devices")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=512, help="samples per iteration; a multiple of 16")
    parser.add_argument("--devices", type=int, default=64, help="at least 6")
    parser.add_argument("--repeats", type=int, default=5, help="renderings of a page with empty caches")
    parser.add_argument("--long", type=int, default=10_000, help="iterations of the long run")
    parser.add_argument("--runs", type=int, default=1000, help="runs in the home at the end; more than 10")
    parser.add_argument("--home", type=Path, help="generate here and keep it; reused if it exists")
    arguments = parser.parse_args()
    scale = Scale(arguments.iterations, arguments.samples, arguments.devices)
    if arguments.quick:
        scale = Scale(60, 128, 16)
        arguments.long, arguments.runs = 200, 40
    if scale.samples % 16 or scale.samples < 16 or scale.devices < 6 or scale.iterations < 20:
        parser.error(f"{scale}: needs 20 iterations, 6 devices, and samples in multiples of 16")
    if arguments.repeats < 1:
        parser.error(f"--repeats is {arguments.repeats}; must be at least 1")
    arguments.keep = arguments.keep and not arguments.quick
    with tempfile.TemporaryDirectory() as folder:
        folder = arguments.home or Path(folder)
        figures = measure(folder, scale, arguments.long, arguments.runs, arguments.repeats)
    finish("ui", figures, arguments)


def measure(folder: Path, scale: Scale, long: int, runs: int, repeats: int) -> dict[str, Any]:
    """Render every page of a home, which is generated if its folder is empty."""
    os.environ[HOME_VARIABLE] = str(folder.absolute())
    store = RunStore(Home(folder.absolute()))
    begin = time.monotonic()
    if not store.home.runs.is_dir():
        unfinished = folder.absolute() / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        write_home(RunStore(Home(unfinished)), scale)
        write_long_run(RunStore(Home(unfinished)), long)
        fill(RunStore(Home(unfinished)), 10)
        Home(unfinished).runs.rename(store.home.runs)
    generate_s = time.monotonic() - begin
    pages, long_pages = (_render_all(run_id, repeats) for run_id in (LARGE_RUN, LONG_RUN))
    fill(store, runs)
    crowded = _render_all(LARGE_RUN, repeats)
    rows = row_counts(store)
    for run_id in store.home.run_ids():
        store.folder(run_id).sweep(stay_s=-1)  # otherwise later, once no reader has an older list of files
    files = [
        path
        for run_id in store.home.run_ids()
        for path in store.home.run(run_id).rglob("*")
        if path.is_file()
    ]
    times = {
        name: max(page["p95_s"] for page in found.values())
        for name, found in (("large", pages), ("long", long_pages), ("crowded", crowded))
    }
    in_all = [sum(page["p50_s"] for page in found.values()) for found in (pages, crowded)]
    return {
        "pages": len(pages),
        "p95_render_s": max(times.values()),
        "p95_by_home_s": times,
        "growth_10_to_1000": round(in_all[1] / in_all[0], 3),
        "long_iterations": long,
        "runs": runs,
        "rows": sum(rows.values()),
        "slowest_page": max(pages, key=lambda name: pages[name]["p95_s"]),
        "by_page": pages,
        "rows_by_table": rows,
        "record_mb": round(sum(file.stat().st_size for file in files) / 1e6, 1),
        "files_of_a_run": max(Counter(file.relative_to(store.home.runs).parts[0] for file in files).values()),
        "generate_s": round(generate_s, 1),
        "iterations": scale.iterations,
        "samples": scale.samples,
        "devices": scale.devices,
        "repeats": repeats,
    }


def _render_all(run_id: str, repeats: int) -> dict[str, dict[str, float]]:
    return {path.parent.name: _render(path, run_id, repeats) for path in sorted(_PAGES.glob("*/page.py"))}


def _render(path: Path, run_id: str, repeats: int) -> dict[str, float]:
    """Return a page's wall-clock and CPU seconds, without the first rendering, which imports."""
    page = AppTest.from_file(str(path), default_timeout=_LIMIT_S)
    page.query_params["run"] = run_id
    _rendered(page)
    cold, cpu = [], []
    for _ in range(repeats):
        st.cache_data.clear()
        before_s = time.process_time()
        cold.append(_rendered(page))
        cpu.append(time.process_time() - before_s)
    warm = _rendered(page)
    found = {
        "p50_s": float(np.median(cold)), "p95_s": float(np.quantile(cold, 0.95)), "warm_s": warm,
        "cpu_s": float(np.median(cpu)),
    }  # fmt: skip
    return {name: round(value, 3) for name, value in found.items()}


def _rendered(page: AppTest) -> float:
    begin = time.monotonic()
    page.run()
    took_s = time.monotonic() - begin
    if page.exception:
        raise RuntimeError(f"a page failed: {page.exception[0].value}")
    return took_s


if __name__ == "__main__":
    main()
