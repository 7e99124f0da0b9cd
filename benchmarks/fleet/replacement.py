"""How long a killed worker's slot stays empty: with a standby, and with a newly started process.

A run of `embedded:glyphs` on Ray (a reserved and two spot workers) rolls out while one spot worker after the
other is killed with SIGKILL. The history, which every run can keep, gives the times from each kill to

- the driver's word that the worker is lost;
- the joining of its replacement;
- the first lease of its replacement.

In one runtime a standby waits for each kill, in another one there is none; they take turns.

    python -m benchmarks.replacement [--quick] [--keep]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fleet.worker_killer import WorkerKiller
from benchmarks.report import finish, nearest_rank, options
from gpu_runtime.chaos.run_processes import RunProcess
from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.history import DRIVER, HistoryLine, check_history
from gpu_runtime.worker.history import read_history
from storage.config.loading import load_config
from storage.record.records import StandbyTime

_SETTINGS = (
    "runtime.history=true", "runtime.reserved_workers=1", "runtime.spot_workers=2",
    "runtime.scorer_workers=1", "runtime.commit_steps=1", "runtime.lease_s=60",
    "runtime.start_timeout_s=600", "sampling.batch_size=4", "sampling.rollout_steps=20",
    "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip
_KILLS_IN_TURN = 4
_LOOK_S = 0.005
_HANG_S = 60.0
"""A place that stays empty for so long although a standby waited counts as a hang."""

_START_LIMIT_S = 600.0
"""The same where a process is started for it: `runtime.start_timeout_s`."""


@dataclass(frozen=True)
class Trial:
    """What followed a kill, in seconds; None where it did not come.

    Attributes:
        known_s: until the driver's word that the worker is lost.
        joined_s: until its replacement had joined.
        pulled_s: until its replacement had its first lease.
    """

    known_s: float | None
    joined_s: float | None
    pulled_s: float | None


class LeaseKiller(WorkerKiller):
    """Kills each victim while it holds a lease.

    Args:
        history: of the run.
        kills: how many.
        waits: whether a standby that has loaded must wait before each kill.
        seed: of victims and moments.
    """

    look_s, most_wait_s = 0.005, 0.1

    def __init__(self, history: Path, kills: int, waits: bool, seed: int) -> None:
        super().__init__(history, kills, seed)
        self._waits = waits
        self._holders: dict[int, str] = {}
        self._ready: set[str] = set()
        self._awaited = ""
        self._wanted = self._delivered = 0

    def before_kill(self, victim: RunProcess) -> None:
        """The slot's replacement is awaited before the next kill."""
        self._awaited = victim.name.split(".")[0]

    def victim(self, lines: Sequence[HistoryLine]) -> RunProcess | None:
        """A spot worker with a lease, once the last one's replacement has one and the next standby waits.

        None near the end of a rollout, where a replacement may find nothing left to pull.
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
    """One of the two runtimes, in turns with the other: each turn is rollouts under kills."""

    def __init__(self, standby_workers: int, kills: int, folder: Path) -> None:
        self._config = load_config("glyphs", [*_SETTINGS, f"runtime.standby_workers={standby_workers}"], {})
        self._standbys = standby_workers
        self._folder = folder
        self._kills = kills
        self.trials: list[Trial] = []
        self.lost = self.twice = 0
        self.broken: list[str] = []
        self.hang_s = _HANG_S if standby_workers else _START_LIMIT_S
        self.standby_time: list[StandbyTime] = []
        self.standbys = 0
        """How many there were; each turn counts its names from 0."""
        self.first: Rollout | None = None
        self.other_bits = 0

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
            self._compare(runtime.rollout(plan))  # the last replacement may still be on its way
            times = runtime.collect().standby_time
        self.standby_time += times
        self.standbys += len({time.standby for time in times})
        lines = read_history(history)
        report = check_history(lines)
        self.lost, self.twice = self.lost + len(report.lost), self.twice + len(report.duplicated)
        self.broken += report.broken()
        self.trials += [_trial(lines, worker, at) for worker, at in killer.killed]
        self.trials += [Trial(None, None, None)] * killer.left

    def _compare(self, rolled: Rollout) -> None:
        """Every rollout has the bits of the first one: the same weights and the same requests."""
        if self.first is None:
            self.first = rolled
        self.other_bits += sum(
            not np.array_equal(one.sample.latents_SC, other.sample.latents_SC)
            for one, other in zip(rolled.delivered, self.first.delivered, strict=True)
        )

    def times(self, name: str) -> list[float]:
        """The times of that name of the trials in which it came."""
        found = (getattr(trial, name) for trial in self.trials)
        return [seconds for seconds in found if seconds is not None]


def _trial(lines: Sequence[HistoryLine], worker: str, at: float) -> Trial:
    """What the driver's history says of a kill."""
    slot = worker.split(".")[0]
    after = sorted((line for line in lines if line.by == DRIVER and line.at >= at), key=lambda line: line.at)

    def until(event: str, is_own: bool) -> float | None:
        for line in after:
            name = line.facts.get("worker", "")
            if line.event == event and name.split(".")[0] == slot and (name == worker) == is_own:
                return line.at - at
        return None

    return Trial(until("lost", True), until("joined", False), until("lease", False))


def figures_of(warm: Side, cold: Side) -> dict[str, Any]:
    """The JSON values of both sides."""
    pulled, cold_pulled = warm.times("pulled_s"), cold.times("pulled_s")
    hangs = sum(
        trial.pulled_s is None or trial.pulled_s > side.hang_s
        for side in (warm, cold)
        for trial in side.trials
    )
    times = warm.standby_time
    return {
        "trials": len(warm.trials) + len(cold.trials),
        "p50_s": nearest_rank(pulled, 0.5),
        "p95_s": nearest_rank(pulled, 0.95),
        "cold_p50_s": nearest_rank(cold_pulled, 0.5),
        "cold_p95_s": nearest_rank(cold_pulled, 0.95),
        "known_p50_s": nearest_rank(warm.times("known_s"), 0.5),
        "known_p95_s": nearest_rank(warm.times("known_s"), 0.95),
        "joined_p50_s": nearest_rank(warm.times("joined_s"), 0.5),
        "hangs": hangs,
        "lost": warm.lost + cold.lost,
        "twice": warm.twice + cold.twice,
        "other_bits": warm.other_bits + cold.other_bits,
        "broken_promises": [*warm.broken, *cold.broken],
        "standby_rss_mib": max(time.memory_bytes for time in times) / 2**20,
        "standby_cpu_s": sum(time.cpu_s for time in times) / warm.standbys,
        "standbys_lost": sum(time.end == "lost" for time in times),
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="4 kills instead of 40")
    parser.add_argument("--kills", type=int, help="so many kills, half of them with a standby")
    arguments = parser.parse_args()
    of_each = (arguments.kills or (4 if arguments.quick else 40)) // 2
    torch.set_num_threads(1)
    began = time.monotonic()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        warm, cold = Side(1, of_each, Path(folder)), Side(0, of_each, Path(folder))
        for first in range(0, of_each, _KILLS_IN_TURN):
            for side in (warm, cold):
                side.turn(min(_KILLS_IN_TURN, of_each - first), seed=first)
                print(f"{len(warm.trials)} warm, {len(cold.trials)} cold", file=sys.stderr, flush=True)
    figures = figures_of(warm, cold)
    figures |= {"load_average": [load, os.getloadavg()[0]], "wall_s": time.monotonic() - began}
    finish("replacement", figures, arguments)


if __name__ == "__main__":
    main()
