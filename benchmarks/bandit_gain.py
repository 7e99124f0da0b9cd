"""What the bandit finds beyond an even division of the same drafts, over both tasks.

    python -m benchmarks.bandit_gain [--keep]

Reads the kept results of `benchmarks.exploration`. A run seed of a task is one observation: the mean over its
tables of fresh scores. Gains are shares of the oracle's spread; the interval is Student's, 95 %, and takes
the two tasks for draws of one kind, which is why each is there by itself too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from benchmarks.exploration import PRESETS
from benchmarks.exploration_summary import half_interval
from benchmarks.report import RESULTS, add_keep_option, finish


def pooled(by_task: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The gain by budget.

    Args:
        by_task: task → budget → what `benchmarks.exploration` says of the allocation.
    """
    budgets = sorted(set.intersection(*(set(budgets) for budgets in by_task.values())))
    figures = {}
    for budget in budgets:
        gains = [gain for task in sorted(by_task) for gain in by_task[task][budget]["gains"]]
        mean, half = statistics.fmean(gains), half_interval(gains)
        figures[budget] = {
            "gain": round(mean, 4),
            "low": round(mean - half, 4),
            "high": round(mean + half, 4),
            "gains": gains,
        }
    return figures


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_keep_option(parser)
    arguments = parser.parse_args()
    kept = {
        task: json.loads((RESULTS / f"exploration-{task}.json").read_text(encoding="utf-8"))["figures"]
        for task in PRESETS
    }
    figures = {
        "curves": {task: figures["curves_commit"] for task, figures in kept.items()},
        "gain_by_budget": pooled({task: figures["allocation"] for task, figures in kept.items()}),
    }
    finish("bandit_gain", figures, arguments.keep)


if __name__ == "__main__":
    main()
