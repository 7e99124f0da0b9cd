"""A judge that fails once in each way, for `test_judges.py`; its first argument is a folder of its calls."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "judges"))
from serving import Facts, Judge, Sample, serve  # pyright: ignore[reportMissingImports]

DIES, HANGS, BEYOND, NAN, RAISES = 5, 12, 28, 33, 38
"""Numbers of the calls at which it fails; the last three are of samples that are trained on."""

CALLS = Path(sys.argv.pop(1))
FACTS = Facts("faulty", "none", "none", 0, (10.0, 20.0), "lower")


def load(part: str) -> Judge:
    """Nothing to load."""

    def score(sample: Sample) -> float:
        number = len(list(CALLS.iterdir()))  # over all restarts
        (CALLS / str(number)).touch()
        if number == DIES:
            os._exit(9)
        if number == HANGS:
            time.sleep(1000)
        if number == RAISES:
            raise RuntimeError("no such picture")
        return {BEYOND: 20.5, NAN: math.nan}.get(number, 15.0 + number % 5)

    return score


if __name__ == "__main__":
    serve(FACTS, load)
