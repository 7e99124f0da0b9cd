"""How long devices that share samples take to form new groups, on the path of a run.

One reserved and three spot workers, Ray processes of a run of `embedded:glyphs`, share every sample
(`sequence_parallel.rollout=4`, gloo). A spot worker is killed with SIGKILL in the middle of a chunk of
denoising steps, its replacement joins, and so on: half of the trials are losses, half planned changes. The
history that every run can keep gives the times of

- a loss: from the kill to the first denoising step of a new group of survivors;
- a planned change: from the moment at which the replacement holds the weights to its group's first step;
- a cold restart: from the start of all processes to the first step that all four share.

`between_phases` counts losses and changes during which a phase of generating ended, or had not begun, so that
there was nothing to do for a new group; their times are in none of these.

All samples are compared with the same samples computed by one process alone.

    python -m benchmarks.elastic_sp [--quick] [--keep]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.fleet.regroup_trials import KILLER, GroupKiller, Trials, evaluate
from benchmarks.report import finish, nearest_rank, options
from gpu_runtime.chaos.run_processes import TRAINER
from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.history import HistoryLine, check_history
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.history import read_history
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.record.records import StateInterval

_DEVICES = 4
_SETTINGS = (
    "runtime.history=true", "runtime.reserved_workers=1", f"runtime.spot_workers={_DEVICES - 1}",
    "runtime.scorer_workers=1", "runtime.commit_steps=1", "runtime.lease_s=20",
    "runtime.start_timeout_s=600", f"sequence_parallel.rollout={_DEVICES}",
    "sampling.rollout_steps=20", "algorithm.prompts_per_iteration=16", "algorithm.group_size=12",
)  # fmt: skip


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest; nothing of nothing."""
    if not values:
        return {}
    return {
        "p50_s": nearest_rank(values, 0.5),
        "p99_s": nearest_rank(values, 0.99),
        "largest_s": max(values),
    }


def measure(config: RunConfig, history: Path, kills: int) -> tuple[Trials, dict[str, Any]]:
    """Roll the same samples out under kills until all are done; the trials, and what else was seen."""
    killer = GroupKiller(history, kills, _DEVICES)
    delivered: list[Delivered] = []
    intervals: list[StateInterval] = []
    held: list[dict[str, float]] = []
    with open_cluster(config) as cluster, Runtime(config, cluster, history) as runtime:
        plan = runtime.explore(1)
        while killer.left and killer.trouble is None:
            with killer.at_work():
                delivered += runtime.rollout(plan).delivered
            intervals += runtime.collect().intervals
            held.append(_held(read_history(history)))
            print(f"{kills - killer.left} of {kills} kills", file=sys.stderr, flush=True)
        delivered += runtime.rollout(plan).delivered  # the last replacement may still be on its way
        intervals += runtime.collect().intervals
    if killer.trouble is not None:
        print(f"ended early: {killer.trouble}", file=sys.stderr)
    lines = read_history(history)
    seen = {
        "broken_promises": check_history(line for line in lines if line.by != KILLER).broken(),
        "cold_restart_s": _first_shared_step_s(lines),
        "max_abs_error": _largest_error(config, delivered),
        "samples": len(delivered),
        "survivor_held_first": held[0],
        "survivor_held_last": held[-1],
    }
    return evaluate(lines, intervals), seen


def _first_shared_step_s(lines: Sequence[HistoryLine]) -> float:
    """From the first process's start to the first denoising step; all devices share every one."""
    began = min(line.at for line in lines if line.event == "process")
    return min(line.at for line in lines if line.event == "step") - began


def _held(lines: Sequence[HistoryLine]) -> dict[str, float]:
    """What the worker that outlives all regroups holds."""
    (pid,) = (
        line.facts["pid"] for line in lines if line.event == "process" and line.facts["name"] == TRAINER
    )
    process = psutil.Process(pid)
    memory = process.memory_full_info()
    return {
        "descriptors": process.num_fds(), "threads": process.num_threads(), "private_mib": memory.uss / 2**20,
    }  # fmt: skip


def _largest_error(config: RunConfig, delivered: Sequence[Delivered]) -> float:
    """The largest deviation of a sample's latents from those that one process makes alone."""
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


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="4 kills instead of 60")
    parser.add_argument("--kills", type=int, help="so many kills")
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
        "killed": spread(trials.killed_s),
        "killed_in_mid_chunk": sum(kill.in_chunk for kill in trials.kills),
        "planned": spread(trials.planned_s),
        "replacement_first_step_p50_s": statistics.median(trials.replaced_s),
        **seen,
        "load_average": [load, os.getloadavg()[0]],
        "wall_s": time.monotonic() - began,
    }
    finish("elastic_sp", figures, arguments)


if __name__ == "__main__":
    main()
