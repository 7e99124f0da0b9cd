"""How a cancelled run's process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import atexit, sys
from prefect.exceptions import TerminationSignal
from flows.cancellation import gone_soon_when_cancelled

class Library:
    def __del__(self):
        print("taken apart", flush=True)

library = Library()
try:
    with gone_soon_when_cancelled():
        atexit.register(print, "handed over")
        if {cancelled}:
            raise TerminationSignal(signal=15)
except TerminationSignal:
    print("cancelled")
sys.exit({code})
"""


@pytest.mark.parametrize(
    ("cancelled", "code", "said"),
    [(True, 0, ["cancelled", "handed over"]), (False, 3, ["handed over", "taken apart"])],
)
def test_only_a_cancelled_run_ends_without_taking_its_libraries_apart(
    cancelled: bool, code: int, said: list[str]
):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(cancelled=cancelled, code=code)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == said, done.stderr
    assert done.returncode == code
