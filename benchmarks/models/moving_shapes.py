"""How far the preset `moving-shapes` learns on two CPU cores: held-out clips before and after, and its time.

Runs `spotlight train` in a new home, once for each run seed. Seconds are those of the whole command.

    python -m benchmarks.moving_shapes [--seeds 2] [--keep] [--set section.key=value]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import finish, options
from storage.home import Home
from storage.record.run_store import RunStore

PRESET = "moving-shapes"


def learned(seed: int, settings: list[str]) -> dict[str, Any]:
    """Train the preset with one run seed, and return what its record says."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        chosen = [item for value in (f"seed={seed}", *settings) for item in ("--set", value)]
        subprocess.run(
            [
                sys.executable, "-m", "flows.cli.command_line",
                "train", "--preset", PRESET, "--cluster", "local", *chosen,
            ],
            env=os.environ | {"SPOTLIGHT_HOME": home}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        took_s = time.monotonic() - began
        with RunStore(Home(Path(home))).reading() as record:
            curve = record.execute(
                "SELECT iteration, score, exact FROM evaluations ORDER BY iteration"
            ).fetchall()
            judge = record.execute(
                "SELECT value FROM evaluation_metrics WHERE name = 'judge' ORDER BY iteration"
            ).fetchall()
    return {
        "seed": seed, "iterations": curve[-1][0], "took_s": took_s,
        "exact_before": curve[0][2], "exact_after": curve[-1][2],
        "score_before": curve[0][1], "score_after": curve[-1][1],
        "judge_before": judge[0][0], "judge_after": judge[-1][0], "curve": curve,
    }  # fmt: skip


def main() -> None:
    """Print each run's figures, and one JSON line last."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="run seeds, from 0")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run")
    arguments = parser.parse_args()
    if arguments.set and arguments.keep:
        parser.error("--keep is for the preset as it is; leave --set out")
    load = os.getloadavg()[0]
    runs = []
    for seed in range(arguments.seeds):
        runs.append(learned(seed, arguments.set))
        print(json.dumps(runs[-1]), flush=True)
    figures = {
        "gain": min(run["exact_after"] - run["exact_before"] for run in runs),
        "most_took_s": max(run["took_s"] for run in runs),
        "load_before_and_after": (load, os.getloadavg()[0]),
        "runs": runs,
    }
    finish("moving_shapes", figures, arguments)


if __name__ == "__main__":
    main()
