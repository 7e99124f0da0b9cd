"""Trains the glyphs task twice: undisturbed, and while real local instances come and go as a trace says.

The undisturbed run has its workers, one of them spot, on this machine, as any local run. The other one joins
a Ray cluster of a reserved instance and of spot instances with one worker each, which are added and removed
(SIGKILL for the whole instance) in accelerated time. Of a trace with more instances at once than `--most`,
every n-th is played. The replay begins with the run's first phase and is stretched to `--stretch` times what
the undisturbed run took; a run that outlasts it goes on with the instances that are left.

`identical_weights`: last checkpoints are the same bytes. `ledger_error`: share of the paid time that is in no
state, or in two. `commit_share`: commits that the run made while it rolled out, times the CPU time of one,
over the CPU time of its denoising steps; both times are measured on a worker of the same cluster beforehand
(benchmarks/commit_cost.py), the commits are counted by the run itself.

    python -m benchmarks.trace_replay [--trace FILE] [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commit_cost import CommitCost, commit_cost
from benchmarks.report import add_keep_option, finish
from gpu_runtime.actors.local_instances import LocalInstances
from gpu_runtime.actors.trace_replay import Replayed, TraceReplay
from gpu_runtime.spot.replay import Replay, thinned
from gpu_runtime.spot.trace import Trace
from gpu_runtime.spot.trace_files import read_trace
from gpu_runtime.spot.trace_generator import TraceShape, generate_trace
from gpu_runtime.spot.trace_summary import summarise
from storage.checkpoints import CheckpointStore
from storage.config import RunConfig
from storage.config_loading import load_config
from storage.database import Database
from storage.home import Home
from storage.ledger import Ledger, read_ledger
from storage.results import run_result

_SCORERS = 1
_SETTINGS = ("algorithm.prompts_per_iteration=8", "evaluation.every=0", "checkpoint.every=5",
             f"runtime.scorer_workers={_SCORERS}", "runtime.start_timeout_s=600")  # fmt: skip
_CALM_SPOT = "runtime.spot_workers=1"  # their number changes no bit, and each takes seconds to start
_FULL = ("iterations=20", "evaluation.prompts=96")
_QUICK = ("iterations=4", "evaluation.prompts=32")
_GENERATED = TraceShape(capacity=4, length_s=20_000, mean_lifetime_s=3600, zones=1)


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        result: scores, time and money.
        blobs: its last checkpoint.
        ledger: where the paid time went.
        metrics: figures of its last iteration.
        took_s: from its first phase to its end.
    """

    result: dict[str, Any]
    blobs: dict[str, bytes]
    ledger: Ledger
    metrics: dict[str, float]
    took_s: float


def train(folder: Path, run_id: str, settings: list[str], at_first_phase: Callable[[], None]) -> Outcome:
    """Run the command line's `train` in a home of its own."""
    sets = [item for value in settings for item in ("--set", value)]
    log = folder / f"{run_id}.log"
    began = 0.0
    with log.open("w") as errors, subprocess.Popen(
        [sys.executable, "-m", "benchmarks.announced_run", "train", "--preset", "glyphs",
         "--run-id", run_id, *sets],
        env=os.environ | {"SPOTLIGHT_HOME": str(folder)}, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if line.startswith("PHASE ") and not began:
                    began = time.monotonic()
                    at_first_phase()
        except BaseException:
            child.terminate()
            raise
    took_s = time.monotonic() - began
    if child.returncode != 0:
        raise SystemExit(f"run {run_id} failed with exit code {child.returncode}:\n{log.read_text()[-2000:]}")
    return _outcome(Home(folder), run_id, took_s)


def _outcome(home: Home, run_id: str, took_s: float) -> Outcome:
    database = Database(home.database)
    with database.reading() as connection:
        ledger = read_ledger(connection, run_id)
        rows = connection.execute(
            "SELECT name, value FROM iteration_metrics WHERE run_id = $run AND iteration = "
            "(SELECT max(iteration) FROM iteration_metrics WHERE run_id = $run)",
            {"run": run_id},
        ).fetchall()
    checkpoint = CheckpointStore(home.checkpoints(run_id), 1).load_latest()
    if checkpoint is None:
        raise SystemExit(f"run {run_id} has left no checkpoint")
    return Outcome(run_result(database, run_id), checkpoint.blobs, ledger, dict(rows), took_s)


def ledger_error(ledger: Ledger) -> float:
    """Share of the paid time that is in no state, or in two."""
    paid_s = sum(worker.paid_s for worker in ledger.workers)
    return sum(abs(worker.unaccounted_s) + worker.double_s for worker in ledger.workers) / paid_s


def commit_share(config: RunConfig, cost: CommitCost, commits: float) -> float:
    """CPU time of a run's commits over that of its denoising steps, up to its last rollout.

    Args:
        config: of the run, which evaluates before it trains and not again before its end.
        cost: of a commit and of a step.
        commits: made until the last rollout was over.
    """
    sampling, size = config.sampling, config.sampling.batch_size
    images = config.algorithm.prompts_per_iteration * config.algorithm.group_size * config.iterations
    evaluated = config.evaluation.prompts * config.evaluation.images_per_prompt
    steps = (images * sampling.rollout_steps + evaluated * sampling.evaluate_steps) / size
    return commits * cost.commit_s / (steps * cost.step_s)


def replayed_run(
    folder: Path, trace: Trace, settings: list[str], notice_s: float
) -> tuple[Outcome, Replayed, CommitCost, int]:
    """Train while the trace is played; what was done, what a commit costs, and instances skipped."""
    instances = LocalInstances(reserved_cpus=1 + _SCORERS)
    try:
        joined = [*settings, f"runtime.ray_address={instances.address}"]
        cost = commit_cost(load_config("glyphs", joined, {}), turns=5)
        replay = Replay(trace, notice_s)
        player = TraceReplay(replay, instances)
        try:
            outcome = train(folder, "replayed", joined, player.start)
        finally:
            player.stop()
        return outcome, player.done, cost, replay.skipped
    finally:
        instances.close()


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", help="a trace file; by default one is generated")
    parser.add_argument("--most", type=int, default=4, help="spot instances at once (default 4)")
    parser.add_argument("--stretch", type=float, default=1.5, help="length of the replay (default 1.5)")
    parser.add_argument("--notice", type=float, default=0.0, help="seconds of notice (default: none)")
    parser.add_argument("--quick", action="store_true", help="4 iterations, the first fifth of the trace")
    add_keep_option(parser)
    arguments = parser.parse_args()
    whole = read_trace(arguments.trace) if arguments.trace else generate_trace(_GENERATED, 0)
    trace = thinned(whole, arguments.most)
    if arguments.quick:
        trace = trace.clipped(0.0, trace.length_s / 5)
    settings = [*_SETTINGS, *(_QUICK if arguments.quick else _FULL), f"runtime.spot_workers={arguments.most}"]
    if arguments.notice:
        settings.append("runtime.notices=kubernetes")
    config = load_config("glyphs", settings, {})
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calm = train(folder / _made(folder, "calm"), "undisturbed", [*settings, _CALM_SPOT], lambda: None)
        speed = trace.length_s / (arguments.stretch * calm.took_s)
        rough, done, cost, skipped = replayed_run(
            folder / _made(folder, "rough"), trace.scaled(speed), settings, arguments.notice
        )
    played = summarise(trace)
    figures = {
        "trace": Path(arguments.trace).name if arguments.trace else "generated",
        "instances_added": len(done.added),
        "instances_removed": len(done.removed),
        "instances_skipped": skipped,
        "instances_in_trace": played.instances,
        "most_at_once": played.peak,
        "multi_loss_share": played.multi_loss_share,
        "multi_loss_share_of_whole_trace": summarise(whole).multi_loss_share,
        "speed": speed,
        "notices": done.warned,
        "identical_weights": calm.blobs == rough.blobs,
        "score_before": rough.result["score_before"],
        "score_undisturbed": calm.result["score_after"],
        "score_replayed": rough.result["score_after"],
        "ledger_error": ledger_error(rough.ledger),
        "ledger_balanced": rough.ledger.is_balanced,
        "workers_paid": len(rough.ledger.workers),
        "workers_lost": len(rough.ledger.losses),
        "samples_returned": rough.metrics["samples_returned"],
        "steps_redone": rough.metrics["steps_redone"],
        "commits": rough.metrics["commits"],
        "commit_share": commit_share(config, cost, rough.metrics["commits"]),
        "commit_cpu_ms": 1000 * cost.commit_s,
        "step_cpu_ms": 1000 * cost.step_s,
        "undisturbed_s": calm.took_s,
        "replayed_s": rough.took_s,
        "iterations": config.iterations,
        "wall_s": time.monotonic() - began,
    }
    finish("trace_replay", figures, arguments.keep)


def _made(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name


if __name__ == "__main__":
    main()
