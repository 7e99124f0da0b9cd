"""How long the page What if takes to answer, and to be drawn once the answer is there.

In a home without runs, Streamlit's AppTest presses the button with the form as a new user finds it: 12
devices and 200 iterations, answered by `spotlight what-if` in a process of its own. Then the page is drawn
again, as after any click on it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from streamlit.testing.v1 import AppTest

from benchmarks.report import add_keep_option, finish
from storage.home import HOME_VARIABLE

_PAGE = Path(__file__).resolve().parents[1] / "ui" / "pages" / "what_if" / "page.py"
_LIMIT_S = 600.0


def main() -> None:
    """Ask, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40, help="drawings after the answer; at least 20")
    add_keep_option(parser)
    arguments = parser.parse_args()
    if arguments.repeats < 20:
        parser.error(f"--repeats is {arguments.repeats}; must be at least 20")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[HOME_VARIABLE] = folder
        figures = measure(arguments.repeats)
    finish("what_if_page", figures, arguments.keep)


def measure(repeats: int) -> dict[str, Any]:
    """The figures of one answer and of so many drawings."""
    page = AppTest.from_file(str(_PAGE), default_timeout=_LIMIT_S)
    _drawn(page)
    page.button[0].click()
    answer_s = _drawn(page)
    asked = page.session_state["what_if"]
    times = [_drawn(page) for _ in range(repeats)]
    return {
        "p50_draw_s": round(float(np.median(times)), 3),
        "p95_draw_s": round(float(np.quantile(times, 0.95)), 3),
        "answer_s": round(answer_s, 2),
        "policies": len(asked.policies),
        "devices": asked.answer["reserved"] + asked.answer["spot"],
        "iterations": asked.answer["iterations"],
        "futures": asked.answer["futures"],
        "intervals": len(asked.line.intervals),
        "trace_mb": round(len(asked.line.text) / 1e6, 2),
        "repeats": repeats,
    }


def _drawn(page: AppTest) -> float:
    begin = time.monotonic()
    page.run()
    took_s = time.monotonic() - begin
    if page.exception or page.error:
        raise RuntimeError(f"the page failed: {[one.value for one in (*page.exception, *page.error)]}")
    return took_s


if __name__ == "__main__":
    main()
