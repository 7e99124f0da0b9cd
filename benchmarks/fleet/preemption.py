"""Inject seeded faults into live runs: samples lost, duplicated or changed, steps repeated, hangs.

Each part is one `spotlight chaos` (preset `glyphs`, one reserved and three spot workers; one part in seven on
Ray, the others on local processes): an undisturbed run, then the same under some fifty faults, resumed
whenever one ends it. Workers are killed: suddenly, after a notice of a simulated metadata service, half of
them at once, while they join, while they commit; they hang or are slow; scorers, the Prefect server and Ray's
own agents are killed; the driver is stopped for a while, or killed. `spotlight chaos` checks the promises
from the history that every process writes, the ledger, and the bits of weights, moving average and optimiser.

A finished part is kept in the home folder at once. Called again, the benchmark continues with the next part;
an interrupted part is repeated. The figures cover all parts so far.

    python -m benchmarks.preemption [--faults 1000] [--parts N] [--minutes M] [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import sets, spotlight
from benchmarks.report import finish, options
from gpu_runtime.chaos.fault_schedule import FAULT_KINDS
from storage.environment import environment
from storage.errors import RuntimeFailure
from storage.home import HOME_VARIABLE, Home

SETTINGS = (
    "evaluation.every=0", "evaluation.prompts=8", "prompts.evaluate=builtin:smoke-evaluate",
    "runtime.reserved_workers=1", "runtime.spot_workers=3", "runtime.scorer_workers=1", "runtime.lease_s=10",
    "runtime.start_timeout_s=600", "sampling.rollout_steps=20", "sampling.window_size=1",
    "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip
SIZE = 50
"""Faults of a part."""

CLUSTERS = {"ray": 1, "local": 6}
"""The clusters that run the parts' workers in turn, and how many parts each gets. With Ray, a replacement
takes ten times as long to start; without it, there are no agents to kill."""

_ENDING = ("coordinator_restart", "agent_death", "server_death")
_ENDING_EVERY = 6
"""Faults after which a run must be resumed take as long as six others: one part in so many has them."""

_SUMS = (
    "faults", "faults_left", "restarts", "samples", "lost", "duplicated_deliveries",
    "late_deliveries_dropped", "hangs", "steps_needed", "steps_redone", "wall_s",
)  # fmt: skip


class Parts:
    """The parts of one series, in a folder of the home.

    A series has one set of settings, seed, part size, machine and versions; commits may differ.
    """

    def __init__(self, settings: Sequence[str], cluster: str, seed: int, size: int) -> None:
        self.cluster = cluster
        self._settings = (*settings, f"runtime.cluster={cluster}")
        self._seed, self._size = seed, size
        facts = {name: value for name, value in environment().items() if name != "commit"}
        named = json.dumps([*self._settings, seed, size, *sorted(facts.items())])
        series = hashlib.sha256(named.encode()).hexdigest()[:8]
        self.folder = Home.from_environment().ensure().path / "benchmarks" / f"preemption-{series}"

    def all(self) -> list[dict[str, Any]]:
        """Return the finished parts, by number."""
        return [json.loads(file.read_text("utf-8")) for file in sorted(self.folder.glob("part-*.json"))]

    def add(self) -> dict[str, Any]:
        """Run the first missing part, and keep it.

        Raises:
            RuntimeFailure: `spotlight chaos` did not come to its end.
        """
        there = {part["part"] for part in self.all()}
        number = next(number for number in range(1, len(there) + 2) if number not in there)
        facts, began, home = environment(), time.monotonic(), self.folder / f"home-{number:04}"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        result = run_chaos(home, self.arguments(number))
        if not result["broken_promises"]:  # otherwise its runs are kept for inspection
            shutil.rmtree(home)
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        named = {"part": number, "cluster": self.cluster, "commit": facts["commit"], "date": date}
        part = {**named, "wall_s": round(time.monotonic() - began, 1), **result}
        kept = self.folder / f"part-{number:04}.json"
        kept.with_suffix(".new").write_text(json.dumps(part, indent=1) + "\n", encoding="utf-8")
        kept.with_suffix(".new").replace(kept)
        return part

    def forget(self) -> None:
        """Drop all parts."""
        for file in self.folder.glob("part-*.json"):
            file.unlink()

    def arguments(self, number: int) -> list[str]:
        """Return the arguments of `spotlight chaos` for a part."""
        seed = self._seed * 100_000 + list(CLUSTERS).index(self.cluster) * 1_000 + number
        without = set() if number % _ENDING_EVERY == 1 else set(_ENDING)
        without |= {"agent_death"} if self.cluster == "local" else set()
        kinds = ",".join(kind for kind in FAULT_KINDS if kind not in without)
        given = ["--preset", "glyphs", "--seed", str(seed), "--faults", str(self._size), "--kinds", kinds]
        return [*given, *sets(self._settings)]


def run_chaos(home: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the result of a `spotlight chaos`, whose progress goes to standard error.

    Raises:
        RuntimeFailure: it did not come to its end.
    """
    surroundings = os.environ | {HOME_VARIABLE: str(home)}
    ended = subprocess.run(
        spotlight("chaos", *arguments), env=surroundings, stdout=subprocess.PIPE, text=True
    )
    if ended.returncode not in (0, 1) or not ended.stdout:  # 1: a promise was broken
        raise RuntimeFailure(f"`spotlight chaos` ended with {ended.returncode}; its home is {home}")
    try:
        return json.loads(ended.stdout.splitlines()[-1])
    except ValueError as error:
        raise RuntimeFailure(f"`spotlight chaos` ended without a result; its home is {home}") from error


def summarise(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of all parts."""
    redone = ("redone_steps_with_notice_max", "redone_steps_without_notice_max")
    shown = ("part", "cluster", "commit", "date", "faults", "restarts", "wall_s")
    return {
        **{name: sum(part[name] for part in parts) for name in _SUMS},
        **{name: max(part[name] for part in parts) for name in redone},
        **{name: all(part[name] for part in parts) for name in ("identical_weights", "ledger_adds_up")},
        "broken_promises": [said for part in parts for said in part["broken_promises"]],
        "faults_by_kind": dict(sum((Counter(part["faults_by_kind"]) for part in parts), Counter[str]())),
        "commit_interval": max(part["commit_interval"] for part in parts),
        "commits": sorted({part["commit"] for part in parts}),
        "parts": [{name: part[name] for name in shown} for part in parts],
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "one part of 16 faults")
    parser.add_argument("--faults", type=int, default=1000, help="continue until all parts have this many")
    parser.add_argument("--parts", type=int, help="run at most this many parts in this call; 0: only figures")
    parser.add_argument("--minutes", type=float, help="start no part after this many minutes")
    parser.add_argument("--cluster", choices=sorted(CLUSTERS), help="run all parts on this one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    size, iterations = (16, 4) if arguments.quick else (SIZE, 12)
    clusters = [arguments.cluster] if arguments.cluster else list(CLUSTERS)
    settings = (*SETTINGS, f"iterations={iterations}", *arguments.set)
    series = [Parts(settings, cluster, arguments.seed, size) for cluster in clusters]
    if arguments.quick:  # always of this commit
        for parts in series:
            parts.forget()
        arguments.faults, arguments.parts = size, 1
    try:
        done = run_parts(series, arguments)
    except RuntimeFailure as error:
        parser.error(f"a part ended early and is not kept: {error}")
    if not done:
        parser.error("no part is finished yet; leave out --parts 0, or give more --minutes")
    figures = summarise(done) | {"seed": arguments.seed, "settings": arguments.set}
    name = "preemption_quick" if arguments.quick else "preemption"
    finish(name, figures, arguments, module="preemption")


def run_parts(series: Sequence[Parts], wanted: argparse.Namespace) -> list[dict[str, Any]]:
    """Run parts until there are enough faults, parts or minutes; return all finished parts."""
    began, added = time.monotonic(), 0
    while True:
        done = [part for parts in series for part in parts.all()]
        late = wanted.minutes is not None and time.monotonic() - began >= 60 * wanted.minutes
        if sum(part["faults"] for part in done) >= wanted.faults or added == wanted.parts or late:
            return done
        part = min(series, key=lambda one: len(one.all()) / CLUSTERS[one.cluster]).add()
        added += 1
        facts = [f"{part['faults']} faults, {part['restarts']} restarts, {part['wall_s']:.0f} s"]
        facts += [f"BROKEN: {broken}" for broken in part["broken_promises"]]
        print(f"part {part['part']} ({part['cluster']}): {'; '.join(facts)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
