"""Iterations whose trainers leave the rollout to train, against those whose trainers stay to its end.

Runs of the embedded model on this machine, in processes without Ray, by the runtime that `spotlight train`
uses, without exploration. Devices take set times (`benchmarks/paced_workers.py`), so that they do not share
the machine's cores. The arms take turns. A run's first iteration is left out: nothing has been timed yet.

`iteration_ratio`: seconds of an iteration, leaving over staying, the ratio of medians. `beside_share`: the
seconds of training that passed before the last score, over those of the iteration. `identical`: all runs end
with the same weights. `notes`: why trainers left.

    python -m benchmarks.rollout_window [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.paced_workers import SamplePacedCluster
from benchmarks.report import add_keep_option, finish
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.environment import environment

_SETTINGS = (
    "runtime.cluster=local", "runtime.reserved_workers=1", "runtime.spot_workers=3",
    "runtime.scorer_workers=1", "exploration.strategy=plain", "reward.signal=graded",
    "algorithm.prompts_per_iteration=12", "evaluation.every=0",
)  # fmt: skip

_FULL, _QUICK = (5, 3), (2, 1)
"""Iterations of a run, and turns."""


@dataclass
class _Arm:
    """What the runs of an arm came to."""

    iteration_s: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def run(config: RunConfig, arm: _Arm) -> None:
    """One run.

    Args:
        config: of the run.
        arm: where its figures go.
    """
    cluster = SamplePacedCluster(config)
    try:
        with Runtime(config, cluster) as runtime:
            for iteration in range(1, config.iterations + 1):
                plan, began_s = runtime.explore(iteration), time.monotonic()
                rolled = runtime.rollout(plan)
                scores = runtime.reward(rolled)
                trained = runtime.train(rolled, scores)
                if iteration > 1:
                    passed_s = time.monotonic() - began_s
                    arm.iteration_s.append(passed_s)
                    arm.beside.append(trained.beside_s / passed_s)
            arm.weights.add(hashlib.sha256(runtime.blobs()["weights.safetensors"]).hexdigest())
            arm.notes += runtime.collect().notes
    finally:
        cluster.shutdown()


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_keep_option(parser)
    parser.add_argument("--quick", action="store_true", help="one turn of two iterations")
    arguments = parser.parse_args()
    began_at = environment()["commit"]
    iterations, turns = _QUICK if arguments.quick else _FULL
    arms = {"stay": _Arm(), "leave": _Arm()}
    for _ in range(turns):
        for name, arm in arms.items():
            leaves = f"runtime.trainers_leave={str(name == 'leave').lower()}"
            run(load_config("smoke", [*_SETTINGS, f"iterations={iterations}", leaves], {}), arm)
    seconds = {name: statistics.median(arm.iteration_s) for name, arm in arms.items()}
    figures: dict[str, Any] = {
        "iteration_ratio": seconds["leave"] / seconds["stay"],
        "iteration_s": seconds,
        "beside_share": {name: statistics.median(arm.beside) for name, arm in arms.items()},
        "identical": len(arms["stay"].weights | arms["leave"].weights) == 1,
        "notes": arms["leave"].notes,
        "all_iteration_s": {name: arm.iteration_s for name, arm in arms.items()},
    }
    finish("rollout_window", figures, arguments.keep, began_at=began_at)


if __name__ == "__main__":
    main()
