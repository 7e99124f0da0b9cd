"""Trains the glyphs task twice: undisturbed, and while real local instances come and go as a trace says.

It is `spotlight chaos --trace` with more iterations and more figures. The undisturbed run has its workers,
one of them spot, on this machine, as any local run. The other one joins a Ray cluster of a reserved
instance and of spot instances with one worker each, which are added and removed (SIGKILL for the whole
instance) in accelerated time. Of a trace with more instances at once than `--most`, every n-th is replayed.
The replay begins with the run's first phase and is stretched to `--stretch` times what the undisturbed run
took; a run that outlasts it goes on with the instances that are left.

`identical_weights`: last checkpoints are the same bytes. `ledger_error`: share of the paid time that is in no
state, or in two. `commit_share`: commits that the run made while it rolled out, times the CPU time of one,
over the CPU time of its denoising steps; both times are measured on a worker of a local cluster beforehand
(benchmarks/commit_cost.py), the commits are counted by the run itself.

    python -m benchmarks.trace_replay [--trace FILE] [--quick] [--keep]
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commit_cost import CommitCost, commit_cost
from benchmarks.report import add_keep_option, finish
from flows.cli.chaos import chaos
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.ledger.ledger import Ledger, read_ledger
from storage.prompts.of_a_run import held_out_prompts
from storage.record.reading import Records
from storage.record.results import run_result
from tasks.chaos.replayed_trace import GENERATED, plan_trace, time_in_phases_s

_SETTINGS = ("algorithm.prompts_per_iteration=8", "evaluation.every=0", "checkpoint.every=5",
             "runtime.scorer_workers=1", "runtime.start_timeout_s=600", "runtime.history=true",
             "runtime.spot_workers=1")  # fmt: skip
_FULL = ("iterations=20", "evaluation.prompts=96")
_QUICK = ("iterations=4", "evaluation.prompts=32")
_FROM_RESULT = (
    "trace", "instances_added", "instances_removed", "instances_skipped", "instances_in_trace",
    "most_at_once", "multi_loss_share", "multi_loss_share_of_whole_trace", "speed", "notices",
    "identical_weights", "lost", "duplicated_deliveries", "hangs",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        result: scores, time and money.
        ledger: where the paid time went.
        metrics: figures of its last iteration.
        took_s: from its first phase to its end.
    """

    result: dict[str, Any]
    ledger: Ledger
    metrics: dict[str, float]
    took_s: float


def outcome(home: Home, run_id: str) -> Outcome:
    """What a run has left in its home."""
    records = Records(home)
    with records.reading(run_id) as connection:
        ledger = read_ledger(connection, run_id)
        rows = connection.execute(
            "SELECT name, value FROM iteration_metrics WHERE run_id = $run AND iteration = "
            "(SELECT max(iteration) FROM iteration_metrics WHERE run_id = $run)",
            {"run": run_id},
        ).fetchall()
    return Outcome(run_result(records, run_id), ledger, dict(rows), time_in_phases_s(home, run_id))


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
    evaluated = held_out_prompts(config, 0) * config.evaluation.images_per_prompt
    steps = (images * sampling.rollout_steps + evaluated * sampling.evaluate_steps) / size
    return commits * cost.commit_s / (steps * cost.step_s)


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", default=GENERATED, help="a trace file; by default one is generated")
    parser.add_argument("--most", type=int, default=4, help="spot instances at once (default 4)")
    parser.add_argument("--stretch", type=float, default=1.5, help="length of the replay (default 1.5)")
    parser.add_argument("--notice", type=float, default=0.0, help="seconds of notice (default: none)")
    parser.add_argument("--quick", action="store_true", help="4 iterations, the first fifth of the trace")
    add_keep_option(parser)
    arguments = parser.parse_args()
    settings = [*_SETTINGS, *(_QUICK if arguments.quick else _FULL)]
    config = load_config("glyphs", settings, {})
    plan = plan_trace(
        config, arguments.trace, most=arguments.most, notice_s=arguments.notice, stretch=arguments.stretch
    )
    if arguments.quick:
        plan = dataclasses.replace(plan, fitted=plan.fitted.clipped(0.0, plan.fitted.length_s / 5))
    began = time.monotonic()
    cost = commit_cost(config, turns=5)
    with tempfile.TemporaryDirectory() as name:
        home = Home(Path(name)).ensure()
        given = ["--preset", "glyphs", *(part for setting in settings for part in ("--set", setting))]
        result = chaos(home, "replay", config, given, plan)
        calm, rough = outcome(home, "replay-calm"), outcome(home, "replay-trace")
    figures = {
        **{name: result[name] for name in _FROM_RESULT},
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


if __name__ == "__main__":
    main()
