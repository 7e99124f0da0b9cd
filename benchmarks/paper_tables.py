"""The tables of two papers, by simulation, beside the papers' own figures, and a sweep to 10,000 devices.

`spotlight` is the Spotlight paper's cluster (`benchmarks/spotlight_table.py`), `rlboost` is RLBoost's
(`benchmarks/rlboost_table.py`); `rlboost.within_15_percent` counts the figures that ours are within 15 % of.
`sweep` is Qwen-Image at 512x512 with the same work a device, with and without exploration, on more and more
devices. Everything is modelled. `python -m benchmarks.measurements` writes docs/paper-tables.md from the
kept result.

    python -m benchmarks.paper_tables [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import rlboost_table, spotlight_table
from benchmarks.report import add_keep_option, finish
from benchmarks.simulator import simulate
from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.traces.files import read_trace
from storage.environment import environment

TRACES = Path(__file__).resolve().parent / "traces"
"""Bamboo's recorded traces (NSDI '23; MIT), as its authors publish them."""

_SIZES = (12, 120, 1_200, 10_000)
_SWEEP_ITERATIONS = 2


def sweep(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The same work a device on more and more devices.

    Args:
        sizes: numbers of devices, of which a third is reserved.
    """
    rows: list[dict[str, Any]] = []
    for devices in sizes:
        plain = simulate(devices, _SWEEP_ITERATIONS, DraftTiming.NEVER)
        ours = simulate(devices, _SWEEP_ITERATIONS)
        rows.append(
            {
                "devices": devices,
                "iteration_s_plain": statistics.fmean(plain.run.iterations) / TICKS_PER_S,
                "iteration_s": statistics.fmean(ours.run.iterations) / TICKS_PER_S,
                "spot_idle_plain": plain.run.share("idle", "spot"),
                "spot_idle": ours.run.share("idle", "spot"),
                "drafts_a_device": ours.run.drafts / devices / (_SWEEP_ITERATIONS - 1),
                "losses": ours.run.losses,
                "events": ours.run.events,
                "cpu_s": ours.cpu_s,
            }
        )
    return rows


def figures(quick: bool) -> dict[str, Any]:
    """All tables.

    Args:
        quick: small ones, which say nothing.
    """
    began = time.process_time()
    p3, g4dn = (read_trace(TRACES / f"bamboo-{name}.csv") for name in ("p3", "g4dn"))
    spotlight = spotlight_table.figures(p3, spotlight_table.QUICK if quick else spotlight_table.Scale())
    rlboost = rlboost_table.figures(g4dn, rlboost_table.QUICK if quick else rlboost_table.Scale())
    return {
        "spotlight": spotlight,
        "rlboost": rlboost,
        "sweep": sweep(_SIZES[:1] if quick else _SIZES),
        "cpu_s": time.process_time() - began,
    }


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one future, one segment, small iterations")
    add_keep_option(parser)
    arguments = parser.parse_args()
    began_at = environment()["commit"]
    finish("paper_tables", figures(arguments.quick), arguments.keep, began_at=began_at)


if __name__ == "__main__":
    main()
