"""docs/paper-tables.md from the kept result of `benchmarks.paper_tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BEGIN = """# The papers' tables, simulated

<!-- Written by python -m benchmarks.measurements from benchmarks/results/paper_tables.json. -->

All of our figures on this page are **modelled**: whole runs under a virtual clock
([what-if.md](what-if.md)). A figure is the median, with the lowest and the highest in brackets. Nothing was
fitted to the figures that it is compared with, but for the choice of RLBoost's trace (below).
"""

_SPOTLIGHT = """## Spotlight

The paper's cluster (arXiv 2606.19004): 4 reserved and 8 spot H100 on four instances of two, Qwen-Image, OCR
and GenEval, 512 and 1280. Seconds come from the carried profiles, of which nothing is measured; their
uncertainty is in the brackets. Preemptions are windows of Bamboo's p3 trace, dollars the known prices of an
H100 by zone: {zones}. Iterations to Flow-GRPO's best gain come from the kept learning curves of the embedded
models: `plain`, and `stale_grpo` for exploration.
"""

_WHY_SPOTLIGHT = """Why they differ:

- The factor of iterations is that of small models on two embedded tasks, with {run_seeds} run seeds, and not
  Qwen-Image's. Where a run seed never reaches the score, it counts as if it did at its end.
- No learning curve has fresh drafts with Flow-GRPO. On the critical path they count as no better than stale
  ones, so that ratio is the longer iteration alone.
- Two devices share a sample in the row `static-sp` alone, on both sides of its ratio, and spot devices are
  lost one by one there. Its groups stay as they are: where one loses a member, the other restarts cold. No
  other baseline loses time to that, which makes them too good.
- The paper's prices, preemptions and seconds are not public.
"""

_RLBOOST = """## RLBoost

Its set-up (arXiv 2510.19225, and its published code): Qwen3 8B, 14B and 32B, 8 reserved H100 (16 for 32B),
spot instances of two, 128 prompts of 8 responses of unlike lengths, three segments of two hours of a random
half of Bamboo's g4dn trace. Ratios are to the reserved GPUs alone, unless the name says otherwise. The
scheduler, the traces, the clock and the bill are the product's; the seeding window, the instance that decodes
many requests at once and the choice of an instance for a request are the benchmark's.
"""

_WHY_RLBOOST = """Why they differ:

- Seconds of decoding and training come from operation counts and assumed shares of the devices' peaks,
  lengths from an assumed distribution. Their trainers' and engines' own overheads are left out. Their
  code's notes name about 10,000 tokens a second for 8B on the reserved GPUs alone; here it is {tokens_per_s}.
- Which half of which trace, and which segments, is not published, and throughput follows the number of
  instances (above). We took g4dn, because their ratios imply about as many instances as half of it has.
- A response is trained on once its prompt's group is whole. The longest responses end an iteration here,
  whatever is rented: that limits what further instances bring.
- What a lost request costs without migration depends on what the others had left to do. The two figures of
  migration are of a single loss each, and have no interval.
"""


def document(figures: Mapping[str, Any], commit: str) -> str:
    """The whole page.

    Args:
        figures: of the kept result.
        commit: that it was made at.
    """
    lines = [_BEGIN, *_spotlight(figures["spotlight"]), *_rlboost(figures["rlboost"])]
    lines += ["## More devices\n", *_sweep(figures["sweep"])]
    lines += [f"`python -m benchmarks.paper_tables --keep`, commit `{commit}`."]
    return "\n".join(lines) + "\n"


def _spotlight(figures: Mapping[str, Any]) -> list[str]:
    settings = figures["settings"]
    best, worst = figures["cost_ratio_best"], figures["cost_ratio_worst"]
    lines = [_SPOTLIGHT.format(zones=", ".join(figures["zones"]))]
    lines += _table(
        ["figure", "ours", "the paper's", "ours over theirs"],
        [
            [text, _spread(row), f"{row['theirs']:g}", _off(row)]
            for text, row in (
                ("time to the score, over that without exploration", figures["time_ratio"]),
                (f"dollars, best: {_where(best)}", best),
                (f"dollars, worst: {_where(worst)}", worst),
            )
        ],
    )
    lines += [
        "With DiffusionNFT as the objective (`stale`), which the paper does not use, the ratio of time is "
        f"{_spread(figures['time_ratio_with_nft'])}.\n",
        "Ratios of each baseline to Spotlight; learning and system have an interval each:\n",
    ]
    head = ["setting", "baseline", "iterations", "seconds an iteration", "dollars an iteration", "time"]
    lines += _table(
        [*head, "dollars"],
        [
            [f"`{setting}`", f"`{policy}`", *(_spread(row[name]) for name in _COLUMNS)]
            for setting, found in settings.items()
            for policy, row in found["baselines"].items()
        ],
    )
    shares = list(next(iter(settings.values()))["milestones"])
    lines += ["Ratio of iterations at shares of the baseline's progress:\n"]
    lines += _table(
        ["setting", *shares],
        [
            [f"`{setting}`", *(_spread(found["milestones"][share]) for share in shares)]
            for setting, found in settings.items()
        ],
    )
    run_seeds = min(found["run_seeds"] for found in settings.values())
    return [*lines, _WHY_SPOTLIGHT.format(run_seeds=run_seeds)]


def _rlboost(figures: Mapping[str, Any]) -> list[str]:
    lines = [_RLBOOST, f"Within 15 % of theirs: **{figures['within_15_percent']}**.\n"]
    lines += _table(
        ["figure", "ours", "theirs", "ours over theirs", "within 15 %"],
        [
            [f"`{name}`", _spread(row), f"{row['theirs']:g}", _off(row), "yes" if row["within"] else "no"]
            for name, row in figures["rows"].items()
        ],
    )
    lines += ["Throughput by number of spot instances, over that of the reserved ones (8B):\n"]
    counts = figures["by_instances"]
    lines += _table(list(counts), [[f"{value:.2f}" for value in counts.values()]])
    tokens_per_s = next(iter(figures["tokens_per_s_of_reserved"].values()))  # of the smallest model
    return [*lines, _WHY_RLBOOST.format(tokens_per_s=f"{tokens_per_s:,.0f}")]


def _sweep(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["Qwen-Image at 512x512 with the same work a device; a third is reserved and trains.\n"]
    return lines + _table(
        ["devices", "s an iteration, plain", "exploring", "spot idle, plain", "exploring", "drafts a device"],
        [
            [
                f"{row['devices']:,}",
                f"{row['iteration_s_plain']:.1f}",
                f"{row['iteration_s']:.1f}",
                f"{row['spot_idle_plain']:.0%}",
                f"{row['spot_idle']:.0%}",
                f"{row['drafts_a_device']:.1f}",
            ]
            for row in rows
        ],
    )


_COLUMNS = ("learning", "system_time", "system_usd", "time_ratio", "cost_ratio")


def _spread(of: Mapping[str, float]) -> str:
    low, median, high = (f"{of[name]:.2f}" for name in ("low", "median", "high"))
    return median if low == high else f"{median} ({low}–{high})"


def _off(of: Mapping[str, float]) -> str:
    return f"{of['off']:+.0%}"


def _where(of: Mapping[str, str]) -> str:
    return f"`{of['baseline']}` of `{of['setting']}`"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]
