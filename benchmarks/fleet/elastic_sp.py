"""Time that devices that share samples take to form new groups during a run.

One reserved and three spot workers, Ray processes of a run of `embedded:glyphs`, share every sample
(`sequence_parallel.rollout=4`, gloo). A spot worker is killed with SIGKILL in the middle of a chunk of
denoising steps, its replacement joins, and so on: half of the trials are losses, half planned changes. The
run's history gives the times of

- a loss: from the kill to the first denoising step of a new group of survivors;
- a planned change: from when the replacement holds the weights to its group's first step;
- a cold restart: from the start of all processes to the first step that all four share.

`between_phases` counts losses and changes during which a generating phase ended, or had not begun, so that a
new group had nothing to do; their times are excluded.

All samples are compared with those of a single process.

    python -m benchmarks.elastic_sp [--quick] [--keep]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fleet.worker_killer import SETTINGS, WorkerKiller
from benchmarks.report import finish, nearest_rank, options
from gpu_runtime.chaos.run_processes import RunProcess
from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.history import DRIVER, MEMBERS_JOINED_BY, HistoryLine, check_history
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.history import HistoryLog, read_history
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.record.records import StateInterval

_DEVICES = 4
_SETTINGS = (
    *SETTINGS, f"runtime.spot_workers={_DEVICES - 1}", "runtime.lease_s=20",
    f"sequence_parallel.rollout={_DEVICES}",
)  # fmt: skip


KILLER = "killer"
"""Name of the kills in the history."""

HANG_S = 10.0
"""Seconds without a group's step after a kill that count as a hang."""

_REPLACED_WITHIN_S = 120.0


@dataclass
class Trials:
    """Times of all kills, and the number of uninformative ones.

    Attributes:
        killed_s: from a kill to the survivors' first denoising step, in the same phase.
        planned_s: from a replacement that holds the weights to its group's first step, in a phase.
        between_phases: losses and planned changes during which a phase ended, or had not begun.
        hangs: kills after which no group of at least two survivors made a step in time.
    """

    killed_s: list[float] = field(default_factory=list)
    planned_s: list[float] = field(default_factory=list)
    between_phases: int = 0
    hangs: int = 0


class GroupKiller(WorkerKiller):
    """Kills each victim while all `devices` share a sample, and notes it in the run's history."""

    most_wait_s = 0.3  # any moment of a chunk: members mostly wait for each other in a collective

    def __init__(self, history: Path, kills: int, devices: int) -> None:
        super().__init__(history, kills)
        self._history, self._devices = history, devices
        self._log: HistoryLog | None = None
        self._leases: dict[int, frozenset[str]] = {}
        self._in_step: frozenset[str] = frozenset()
        self._waiting_since = time.monotonic()

    def victim(self, lines: Sequence[HistoryLine]) -> RunProcess | None:
        """Return a spot worker of the full group once the group has made a step."""
        for line in lines:
            if line.by == DRIVER and line.event == "lease":
                members = frozenset(line.facts["worker"].split(MEMBERS_JOINED_BY))
                self._leases[line.facts["lease"]] = members
            elif line.event == "step":
                members = self._leases.get(line.facts["lease"], frozenset())
                if len(members) == self._devices:
                    self._in_step = members
        spots = [process for process in self.processes.spots() if process.name in self._in_step]
        if len(spots) == self._devices - 1:
            return self.random.choice(spots)
        # After a kill, its group's last lines may still arrive: all members must live.
        if time.monotonic() - self._waiting_since > _REPLACED_WITHIN_S:
            self.trouble = f"no group of {self._devices} within {_REPLACED_WITHIN_S:g} s"
        return None

    def before_kill(self, victim: RunProcess) -> None:
        """Note the kill."""
        if self._log is None:
            self._log = HistoryLog(self._history / f"{self.processes.life:04}", KILLER)
        self._log.note("kill", worker=victim.name)
        self._in_step, self._waiting_since = frozenset(), time.monotonic()
        print(f"killing {victim.name}, {self.left} left", file=sys.stderr, flush=True)


def evaluate(lines: Iterable[HistoryLine], intervals: Iterable[StateInterval]) -> Trials:
    """Return the figures of the kills, from a history and the ledger.

    If a phase ended or began meanwhile, a step had to wait for it, and the time is uninformative.
    """
    ordered = sorted(lines, key=lambda line: line.at)
    steps = [line for line in ordered if line.event == "step"]
    leases = {line.facts["lease"]: line for line in ordered if line.by == DRIVER and line.event == "lease"}
    bounds = [line.at for line in ordered if line.by == DRIVER and line.event in ("generate", "generated")]
    loaded_at: dict[str, float] = {}
    for part in intervals:
        if part.state == "load":
            loaded_at[part.worker] = max(part.ended_at, loaded_at.get(part.worker, 0.0))
    trials = Trials()

    def note(seconds: list[float], since: float, until: float) -> None:
        if any(since <= moment <= until for moment in bounds):
            trials.between_phases += 1
        else:
            seconds.append(until - since)

    def is_of_survivors(step: HistoryLine, victim: str, since: float) -> bool:
        lease = leases[step.facts["lease"]]
        members = lease.facts["worker"].split(MEMBERS_JOINED_BY)
        return lease.at > since and len(members) > 1 and victim not in members

    for kill in (line for line in ordered if line.by == KILLER and line.event == "kill"):
        victim = kill.facts["worker"]
        regrouped_at = next((step.at for step in steps if is_of_survivors(step, victim, kill.at)), None)
        trials.hangs += regrouped_at is None or regrouped_at - kill.at > HANG_S
        if regrouped_at is not None:
            note(trials.killed_s, kill.at, regrouped_at)
        # The victim may finish one more step between the note of its kill and the signal.
        after = [step for step in steps if step.at > kill.at and step.by != victim]
        own = next((step for step in after if step.by.split(".")[0] == victim.split(".")[0]), None)
        if own is not None and own.by in loaded_at:
            note(trials.planned_s, loaded_at[own.by], own.at)
    return trials


def measure(config: RunConfig, history: Path, kills: int) -> tuple[Trials, dict[str, Any]]:
    """Roll out the same samples under kills until all are done; return the trials and other figures."""
    killer = GroupKiller(history, kills, _DEVICES)
    delivered: list[Delivered] = []
    intervals: list[StateInterval] = []
    with open_cluster(config) as cluster, Runtime(config, cluster, history) as runtime:
        plan = runtime.explore(1)
        while killer.left and killer.trouble is None:
            with killer.at_work():
                delivered += runtime.rollout(plan).delivered
            intervals += runtime.collect().intervals
            print(f"{kills - killer.left} of {kills} kills", file=sys.stderr, flush=True)
        delivered += runtime.rollout(plan).delivered  # the last replacement may still be starting
        intervals += runtime.collect().intervals
    if killer.trouble is not None:
        print(f"ended early: {killer.trouble}", file=sys.stderr)
    lines = read_history(history)
    first_step = min(line.at for line in lines if line.event == "step")  # all devices share every one
    seen = {
        "broken_promises": check_history(line for line in lines if line.by != KILLER).broken(),
        "cold_restart_s": first_step - min(line.at for line in lines if line.event == "process"),
        "max_abs_error": _largest_error(config, delivered),
        "samples": len(delivered),
    }
    return evaluate(lines, intervals), seen


def _largest_error(config: RunConfig, delivered: Sequence[Delivered]) -> float:
    """Return the largest deviation of a sample's latents from those of a single process."""
    worker = DeviceWorker(config, trains=False)
    worker.use_training_weights(WeightsVersion(0))
    requests = list(dict.fromkeys(one.sample.request for one in delivered))
    size = config.sampling.batch_size
    alone = {
        sample.request: sample.latents_SC
        for first in range(0, len(requests), size)
        for sample in worker.generate(requests[first : first + size])
    }
    apart = (np.abs(one.sample.latents_SC - alone[one.sample.request]).max() for one in delivered)
    return float(max(apart))


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum; empty without values."""
    shares = {"p50_s": 0.5, "p99_s": 0.99, "largest_s": 1.0}
    return {name: nearest_rank(values, share) for name, share in shares.items()} if values else {}


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "4 kills instead of 60")
    parser.add_argument("--kills", type=int, help="number of kills")
    arguments = parser.parse_args()
    kills = arguments.kills or (4 if arguments.quick else 60)
    torch.set_num_threads(1)
    began = time.monotonic()
    load = os.getloadavg()[0]
    config = load_config("glyphs", list(_SETTINGS), {})
    with tempfile.TemporaryDirectory() as folder:
        trials, seen = measure(config, Path(folder), kills)
    measured = trials.killed_s + trials.planned_s
    if not measured:
        raise SystemExit("no loss and no change fell into a phase; try more --kills")
    regroup_s = nearest_rank(measured, 0.5)
    figures = {
        "live": True,
        "regroup_p50_s": regroup_s,
        "regroup_p99_s": nearest_rank(measured, 0.99),
        "trials": len(measured),
        "between_phases": trials.between_phases,
        "hangs": trials.hangs,
        "max_abs_error": seen.pop("max_abs_error"),
        "ratio": seen["cold_restart_s"] / regroup_s,
        "killed": _spread(trials.killed_s),
        "planned": _spread(trials.planned_s),
        **seen,
        "load_average": [load, os.getloadavg()[0]],
        "wall_s": time.monotonic() - began,
    }
    finish("elastic_sp", figures, arguments)


if __name__ == "__main__":
    main()
