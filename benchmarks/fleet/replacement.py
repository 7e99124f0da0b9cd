"""Time that a killed worker's slot stays empty: with a standby, and with a newly started process.

A run of `embedded:glyphs` on Ray (a reserved and two spot workers) rolls out while spot workers are killed
one by one with SIGKILL. The run's history gives the time from each kill to the first lease of its
replacement.

In one runtime a standby waits for each kill, in another there is none; they take turns.

    python -m benchmarks.replacement [--quick] [--keep]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fleet.worker_killer import SETTINGS, WorkerKiller
from benchmarks.report import finish, nearest_rank, options
from gpu_runtime.chaos.run_processes import RunProcess
from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.history import DRIVER, HistoryLine, check_history
from gpu_runtime.worker.history import read_history
from storage.config.loading import load_config
from storage.record.records import StandbyTime

_SETTINGS = (*SETTINGS, "runtime.spot_workers=2", "runtime.lease_s=60", "sampling.batch_size=4")
_KILLS_IN_TURN = 4
_HANG_S = 60.0
"""Seconds that a slot stays empty, despite a waiting standby, that count as a hang."""

_START_LIMIT_S = 600.0
"""The same if a process is started for it: `runtime.start_timeout_s`."""


class LeaseKiller(WorkerKiller):
    """Kills each victim while it holds a lease."""

    look_s, most_wait_s = 0.005, 0.1

    def __init__(self, history: Path, kills: int, waits: bool, seed: int) -> None:
        super().__init__(history, kills, seed)
        self._waits = waits
        self._holders: dict[int, str] = {}
        self._ready: set[str] = set()
        self._awaited = ""
        self._wanted = self._delivered = 0

    def before_kill(self, victim: RunProcess) -> None:
        """Note the slot, whose replacement must come before the next kill."""
        self._awaited = victim.name.split(".")[0]

    def victim(self, lines: Sequence[HistoryLine]) -> RunProcess | None:
        """Return a spot worker with a lease, once the last replacement has one and the next standby waits.

        None near the end of a rollout, when a replacement may find nothing left to pull.
        """
        for line in lines:
            facts = line.facts
            if line.by == DRIVER and line.event == "lease":
                self._holders[facts["lease"]] = facts["worker"]
                last = self.killed[-1][0] if self.killed else ""
                if facts["worker"].split(".")[0] == self._awaited and facts["worker"] != last:
                    self._awaited = ""
            elif line.by == DRIVER and line.event == "generate":
                self._wanted, self._delivered = len(facts["requests"]), 0
            elif line.by == DRIVER and line.event in ("deliver", "back"):
                self._delivered += len(facts.get("accepted", ()))
                self._holders.pop(facts["lease"], None)
            elif line.event == "standby_ready":
                self._ready.add(facts["standby"])
            elif line.event in ("taken", "standby_lost"):
                self._ready.discard(facts["standby"])
        if self._awaited or (self._waits and not self._ready) or self._delivered > self._wanted / 2:
            return None
        busy = [process for process in self.processes.spots() if process.name in self._holders.values()]
        return self.random.choice(busy) if busy else None


class Side:
    """One of the two runtimes, in turns with the other: each turn is rollouts under kills.

    Attributes:
        pulled_s: seconds from each kill to the first lease of its replacement; None if none came.
        counts: samples lost and delivered twice, samples with other bits, standbys (each turn names its own
            from 0), and hangs.
    """

    def __init__(self, standby_workers: int, folder: Path) -> None:
        self._config = load_config("glyphs", [*_SETTINGS, f"runtime.standby_workers={standby_workers}"], {})
        self._standbys, self._folder = standby_workers, folder
        self.pulled_s: list[float | None] = []
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.standby_time: list[StandbyTime] = []
        self._first: Rollout | None = None

    def turn(self, kills: int, seed: int) -> None:
        """Start a cluster and a runtime, and roll out until the kills are done."""
        history = self._folder / f"{self._standbys}-{seed}"
        killer = LeaseKiller(history, kills, bool(self._standbys), seed)
        limit_s = time.monotonic() + kills * 2 * _HANG_S
        with open_cluster(self._config) as cluster, Runtime(self._config, cluster, history) as runtime:
            plan = runtime.explore(1)
            with killer.at_work():
                while killer.left and time.monotonic() < limit_s:
                    self._compare(runtime.rollout(plan))
            self._compare(runtime.rollout(plan))  # the last replacement may still be starting
            times = runtime.collect().standby_time
        lines = read_history(history)
        report = check_history(lines)
        pulled_s = [*(_pulled_s(lines, *kill) for kill in killer.killed), *[None] * killer.left]
        hang_s = _HANG_S if self._standbys else _START_LIMIT_S
        self.counts += Counter(
            lost=len(report.lost), twice=len(report.duplicated),
            standbys=len({time.standby for time in times}),
            hangs=sum(seconds is None or seconds > hang_s for seconds in pulled_s),
        )  # fmt: skip
        self.pulled_s += pulled_s
        self.broken += report.broken()
        self.standby_time += times

    def _compare(self, rolled: Rollout) -> None:
        """Compare a rollout's bits with the first one's: weights and requests are the same."""
        self._first = self._first or rolled
        self.counts["other_bits"] += sum(
            not np.array_equal(one.sample.latents_SC, other.sample.latents_SC)
            for one, other in zip(rolled.delivered, self._first.delivered, strict=True)
        )

    def quantile_s(self, share: float) -> float:
        """Return a quantile of the times of trials with a replacement."""
        return nearest_rank([seconds for seconds in self.pulled_s if seconds is not None], share)


def _pulled_s(lines: Sequence[HistoryLine], worker: str, at: float) -> float | None:
    """Return the seconds from a kill to its replacement's first lease, from the driver's history."""
    slot = worker.split(".")[0]
    for line in sorted(lines, key=lambda line: line.at):
        if line.by == DRIVER and line.event == "lease" and line.at >= at:
            name = line.facts["worker"]
            if name != worker and name.split(".")[0] == slot:
                return line.at - at
    return None


def figures_of(warm: Side, cold: Side) -> dict[str, Any]:
    """Return the figures of both sides as JSON values."""
    counts, times = warm.counts + cold.counts, warm.standby_time
    return {
        "trials": len(warm.pulled_s) + len(cold.pulled_s),
        "p50_s": warm.quantile_s(0.5),
        "p95_s": warm.quantile_s(0.95),
        "cold_p50_s": cold.quantile_s(0.5),
        "cold_p95_s": cold.quantile_s(0.95),
        **{name: counts[name] for name in ("hangs", "lost", "twice", "other_bits")},
        "broken_promises": [*warm.broken, *cold.broken],
        "standby_rss_mib": max(time.memory_bytes for time in times) / 2**20,
        "standby_cpu_s": sum(time.cpu_s for time in times) / warm.counts["standbys"],
        "standbys_lost": sum(time.end == "lost" for time in times),
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "4 kills instead of 40")
    parser.add_argument("--kills", type=int, help="number of kills, half of them with a standby")
    arguments = parser.parse_args()
    of_each = (arguments.kills or (4 if arguments.quick else 40)) // 2
    torch.set_num_threads(1)
    began = time.monotonic()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        warm, cold = Side(1, Path(folder)), Side(0, Path(folder))
        for first in range(0, of_each, _KILLS_IN_TURN):
            for side in (warm, cold):
                side.turn(min(_KILLS_IN_TURN, of_each - first), seed=first)
                print(f"{len(warm.pulled_s)} warm, {len(cold.pulled_s)} cold", file=sys.stderr, flush=True)
    figures = figures_of(warm, cold)
    figures |= {"load_average": [load, os.getloadavg()[0]], "wall_s": time.monotonic() - began}
    finish("replacement", figures, arguments)


if __name__ == "__main__":
    main()
