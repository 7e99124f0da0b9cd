"""How long a sequence-parallel group takes to form anew when a member is killed or the plan changes.

Four processes (gloo) share the sequences of `embedded:glyphs`. In half of the trials one of them is
killed with SIGKILL in the middle of a collective; in the other half the degree changes by plan. Timed
is from there to the first denoising step done at the new degree. Compared is a cold restart: four
processes from nothing to the first step. Then planned changes follow each other, and what each
process holds is counted before, after half of them and at the end: a leak grows in both halves, memory
that fills up once in the first alone.

    python -m benchmarks.elastic_sp [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import neighbour_copy
from benchmarks.process_usage import Usage, growth_mib
from benchmarks.regroup_trials import ALONE, HALF, WIDE, RegroupTrials
from benchmarks.report import add_keep_option, finish
from gpu_runtime.sequence_parallel.shared_memory_weights import SHARED_MEMORY, sweep
from storage.environment import environment

_PLANS = (HALF, WIDE, ALONE, WIDE)


def nearest_rank(values: list[float], share: float) -> float:
    """The smallest value that a share of all values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def cold_restarts(folder: Path, repeats: int) -> list[float]:
    """Seconds from four process starts to the first step that all four share."""
    taken = []
    for _ in range(repeats):
        trials = RegroupTrials(folder, cold=True)
        taken.append(trials.first_step_s)
        trials.close()
    return taken


def spread(values: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest."""
    return {
        "p50_s": nearest_rank(values, 0.5),
        "p99_s": nearest_rank(values, 0.99),
        "largest_s": max(values),
    }


def regroup_in_a_row(run: RegroupTrials, regroups: int) -> list[Usage]:
    """Planned changes, one after the other; what all processes hold before, at half and after."""
    usages = [run.usage()]
    for number in range(regroups):
        run.change(_PLANS[number % len(_PLANS)])
        if number + 1 in (regroups // 2, regroups):
            usages.append(run.usage())
            print(f"after {number + 1} regroups: {usages[-1].total()}", file=sys.stderr)
    return usages


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="20 trials, 80 regroups, one cold restart")
    add_keep_option(parser)
    arguments = parser.parse_args()
    trials, regroups, colds = (20, 80, 1) if arguments.quick else (100, 2000, 2)
    torch.set_num_threads(1)
    began_at = environment()["commit"]
    load: dict[str, Any] = {"before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = RegroupTrials(folder)
        for number in range(trials // 2):
            run.settle()  # a kill strikes a group of four
            run.kill()
            run.change(HALF if number % 2 else ALONE)
        measured = run.result.killed_s + run.result.planned_s
        killed, planned = list(run.result.killed_s), list(run.result.planned_s)
        run.settle()
        print(f"killed {spread(killed)}, planned {spread(planned)}", file=sys.stderr)
        usages = regroup_in_a_row(run, regroups)
        run.close()
        load["after regroups"] = os.getloadavg()[0]
        copied = neighbour_copy.measure(folder / "weights", 3 if arguments.quick else 7)
        cold = cold_restarts(folder, colds)
    sweep()
    left_over = len(list(SHARED_MEMORY.glob("*spotlight-weights*")))
    load["after"] = os.getloadavg()[0]
    regroup_s = nearest_rank(measured, 0.5)
    figures = {
        "regroup_p50_s": regroup_s,
        "regroup_p99_s": nearest_rank(measured, 0.99),
        "cold_restart_s": statistics.median(cold),
        "ratio": statistics.median(cold) / regroup_s,
        "trials": len(measured),
        **copied,
        "max_abs_error": run.result.error,
        "hangs": run.result.hangs,
        "killed": spread(killed),
        "planned": spread(planned),
        "planned_in_a_row": spread(run.result.planned_s[len(planned) :]),
        "replacement_ready_p50_s": statistics.median(run.result.replaced_s),
        "replacements_from_neighbour": [run.result.from_neighbour, len(run.result.replaced_s)],
        "regroups": regroups,
        "usage_before": usages[0].total(),
        "usage_at_half": usages[1].total(),
        "usage_after": usages[2].total(),
        "grown_mib_by_halves": growth_mib(usages),
        "weights_left_over": left_over,
        "load_average": load,
    }
    finish("elastic_sp", figures, arguments.keep, began_at=began_at)


if __name__ == "__main__":
    main()
