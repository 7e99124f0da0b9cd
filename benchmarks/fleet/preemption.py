"""Seeded faults on live runs: samples lost, duplicated or changed, steps done again, hangs.

Each part is a run of `spotlight train` (preset `glyphs`, one reserved and three spot workers, real processes
with the real model; one part in seven on Ray, the others without) under some fifty faults: workers are
killed, killed after a notice of a simulated metadata service, half of them at once, while they join, while
they commit; they hang or are slow; scorers, the Prefect server and Ray's own agents are killed; the driver is
stopped for a while, or killed. Where a fault ends the run, `spotlight resume` goes on with it. The promises
are checked from the history that every process writes (`gpu_runtime/scheduling/history.py`); weights,
moving average and optimiser are compared with those of an undisturbed run that is made once.

A part that is over is kept in the home folder at once. Called again, the benchmark goes on with the next
part; one that was cut off is done again. The figures are those of all parts so far.

    python -m benchmarks.preemption [--faults 1000] [--parts N] [--minutes M] [--quick] [--keep]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fleet.fault_parts import CLUSTERS, PACK, Part, Parts, Reference
from benchmarks.report import finish, options
from storage.errors import SpotlightError

SETTINGS = (
    "evaluation.every=0", "evaluation.prompts=8", "prompts.evaluate=builtin:smoke-evaluate",
    "runtime.history=true", "runtime.reserved_workers=1", "runtime.spot_workers=3",
    "runtime.scorer_workers=1", "runtime.commit_steps=2",
    "runtime.lease_s=10", "runtime.start_timeout_s=600", "sampling.rollout_steps=20",
    "sampling.window_size=1", "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--faults", type=int, default=1000, help="go on until so many are done, in all parts")
    parser.add_argument("--parts", type=int, help="do at most so many parts in this call; 0: figures alone")
    parser.add_argument("--minutes", type=float, help="begin no further part after so many minutes")
    parser.add_argument("--quick", action="store_true", help="one part of 16 faults")
    parser.add_argument("--cluster", choices=sorted(CLUSTERS), help="all parts on this one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    size, iterations = (16, 4) if arguments.quick else (PACK, 12)
    clusters = [arguments.cluster] if arguments.cluster else list(CLUSTERS)
    settings = (*SETTINGS, *arguments.set)
    series = [Parts(settings, cluster, arguments.seed, size, iterations) for cluster in clusters]
    if arguments.quick:  # always of this very commit
        for parts in series:
            parts.forget()
        arguments.faults, arguments.parts = size, 1
    began, added = time.monotonic(), 0
    while (
        _done(series) < arguments.faults
        and (arguments.parts is None or added < arguments.parts)
        and (arguments.minutes is None or time.monotonic() - began < 60 * arguments.minutes)
    ):
        parts = min(series, key=lambda one: len(one.all()) / CLUSTERS[one.cluster])
        try:
            part, added = parts.add(), added + 1
        except SpotlightError as error:
            parser.error(f"a part ended early and is not kept: {error}")
        _say(
            f"part {part.number} ({parts.cluster}): {_faults([part])} faults, {_done(series)} so far, "
            f"{part.restarts} restarts, {part.wall_s:.0f} s"
            + "".join(f"; BROKEN: {said}" for said in part.broken)
        )
    begun = {one.cluster: Results(one.all(), one.reference()) for one in series if one.all()}
    if not begun:
        parser.error("no part is there yet; leave out --parts 0, or give more --minutes")
    figures = summarise(begun) | {
        "seed": arguments.seed,
        "settings": arguments.set,
        "commit_interval": series[0].config.runtime.commit_steps,
    }
    name = "preemption_quick" if arguments.quick else "preemption"
    finish(name, figures, arguments, module="preemption")


@dataclass(frozen=True)
class Results:
    """All parts of a cluster and its undisturbed run."""

    parts: Sequence[Part]
    reference: Reference


def summarise(results: Mapping[str, Results]) -> dict[str, Any]:
    """The figures of all parts, and of each cluster's."""
    parts = [part for one in results.values() for part in one.parts]

    def total(name: str) -> int:
        return sum(part.counts[name] for part in parts)

    return {
        "faults": _faults(parts),
        "faults_left": sum(part.left for part in parts),
        "lost": total("lost"),
        "duplicated_deliveries": total("duplicated_deliveries"),
        "hangs": sum(part.hung for part in parts),
        "identical_weights": all(part.identical for part in parts),
        "ledger_adds_up": all(part.balanced for part in parts),
        "broken_promises": [said for part in parts for said in part.broken],
        "restarts": sum(part.restarts for part in parts),
        "faults_by_kind": dict(sum((Counter(part.faults) for part in parts), Counter())),
        "redone_steps_with_notice_max": max(part.counts["redone_steps_with_notice_max"] for part in parts),
        "redone_steps_without_notice_max": max(
            part.counts["redone_steps_without_notice_max"] for part in parts
        ),
        **{
            name: total(name)
            for name in (
                "samples", "late_deliveries_dropped", "losses_with_notice", "losses_without_notice",
                "steps_needed", "steps_redone",
            )
        },
        "wall_s": sum(part.wall_s for part in parts),
        "commits": sorted({one.commit for one in (*parts, *(each.reference for each in results.values()))}),
        "clusters": {name: _of_cluster(one) for name, one in results.items()},
    }  # fmt: skip


def _of_cluster(results: Results) -> dict[str, Any]:
    return {
        "faults": _faults(results.parts),
        "wall_s_undisturbed": results.reference.wall_s,
        "parts": [
            {
                "part": part.number,
                "commit": part.commit,
                "date": part.date,
                "faults": _faults([part]),
                "restarts": part.restarts,
                "wall_s": round(part.wall_s, 1),
            }
            for part in results.parts
        ],
    }


def _faults(parts: Sequence[Part]) -> int:
    return sum(sum(part.faults.values()) for part in parts)


def _done(series: Sequence[Parts]) -> int:
    return sum(_faults(parts.all()) for parts in series)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
