"""What stale exploration adds to an iteration's critical path, from the run's own time line.

Two live runs of one preset take turns, one `plain` and one that explores. The critical path of an
iteration is rollout, reward, training, and what lies between the end of its training steps and the next
rollout. Exploration can lengthen only the last: waiting for the phase of drafts, choosing seeds, looking
back on them. It is read from the devices' states (trainer's `train` to the first `rollout`), so evaluation
is off. On a machine whose devices share cores, training itself slows down beside drafts; that is reported
too, and is not the critical path of a fleet whose devices are its own.

`same_bits` says whether a run whose scoring, training and drafting overlap ends with the weights, the
moving average and the optimiser of one that does them one after another, both with a set number of drafts
(`benchmarks/exploration/learning_curve.py`).

    python -m benchmarks.overlap [--quick] [--keep]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exploration.learning_curve import make_curve
from benchmarks.report import finish, options
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore

_SETTINGS = ("runtime.reserved_workers=1", "runtime.spot_workers=1", "runtime.scorer_workers=1",
             "evaluation.every=0", "evaluation.prompts=1", "evaluation.images_per_prompt=1")  # fmt: skip

_BITS_OF = 4
"""Iterations of the runs whose bits are compared."""

_COUNTED = ("exploration.strategy=stale", "exploration.drafts=192", "exploration.stop_with_training=false")
"""No number of theirs depends on how long anything takes."""

_ITERATIONS = """
    SELECT coalesce(max(value) FILTER (name = 'iteration_s'), 0),
        coalesce(max(value) FILTER (name = 'reward_s'), 0),
        coalesce(max(value) FILTER (name = 'train_s'), 0),
        coalesce(max(value) FILTER (name = 'explore_wait_s'), 0),
        coalesce((SELECT n.value FROM iteration_metrics n
            WHERE n.iteration = m.iteration + 1 AND n.name = 'drafts'), 0),
        (SELECT min(started_at) FROM worker_states w
            WHERE w.iteration = m.iteration + 1 AND state = 'rollout')
        - (SELECT max(ended_at) FROM worker_states w WHERE w.iteration = m.iteration AND state = 'train')
    FROM iteration_metrics m GROUP BY iteration ORDER BY iteration
"""
_IDLE = """
    SELECT sum(ended_at - started_at) FILTER (state = 'idle' AND market = 'spot')
            / sum(ended_at - started_at) FILTER (market = 'spot'),
        sum(ended_at - started_at) FILTER (state = 'idle' AND market = 'reserved')
            / sum(ended_at - started_at) FILTER (market = 'reserved')
    FROM worker_states WHERE phase = 'iteration'
        AND iteration > 1 AND iteration < (SELECT max(iteration) FROM iterations)
"""


@dataclass(frozen=True)
class Timings:
    """Seconds of a run, one entry an iteration that has one before and one after it.

    Attributes:
        iteration_s, reward_s, train_s: of the iteration, of its wait for scores and of its training phase.
        between_s: from the end of the training steps to the first rollout of the next iteration.
        wait_s: that the flow waited for exploration once training had ended.
        drafts: judged in the window.
        spot_idle, reserved_idle: shares of the time of the spot and of the reserved devices.
    """

    iteration_s: list[float]
    reward_s: list[float]
    train_s: list[float]
    between_s: list[float]
    wait_s: list[float]
    drafts: list[float]
    spot_idle: float
    reserved_idle: float


def train(preset: str, values: Sequence[str], folder: str) -> None:
    """Do a run.

    Args:
        preset: its preset.
        values: its settings.
        folder: its home.
    """
    sets = [item for value in values for item in ("--set", value)]
    subprocess.run(
        [sys.executable, "-m", "flows.cli.command_line", "train", "--preset", preset,
         "--run-id", "overlap", *sets],
        check=True, capture_output=True, env=os.environ | {"SPOTLIGHT_HOME": folder},
    )  # fmt: skip


def same_bits(preset: str) -> bool:
    """Whether a run that overlaps its phases ends as one that does them one after another."""
    values = (f"iterations={_BITS_OF}", *_COUNTED, *_SETTINGS)
    in_turns: dict[str, bytes] = {}

    def keep(runtime: Runtime) -> None:
        in_turns.update(runtime.blobs())

    make_curve(load_config(preset, values, {}), _BITS_OF, _BITS_OF, keep)
    with tempfile.TemporaryDirectory() as folder:
        train(preset, values, folder)
        checkpoint = CheckpointStore(Home(Path(folder)).run("overlap")).load_latest()
    return checkpoint is not None and dict(checkpoint.blobs) == in_turns


def measure(preset: str, iterations: int, strategy: str) -> Timings:
    """Run it and read its time line."""
    with tempfile.TemporaryDirectory() as folder:
        train(preset, (f"iterations={iterations}", f"exploration.strategy={strategy}", *_SETTINGS), folder)
        with RunStore(Home(Path(folder))).reading() as connection:
            rows = connection.execute(_ITERATIONS).fetchall()
            idle = connection.execute(_IDLE).fetchone()
    # The first window has no forecast yet, and the last iteration nothing to explore for.
    iteration_s, reward_s, train_s, wait_s, drafts, between_s = (
        list(column) for column in zip(*rows[1:-1], strict=True)
    )
    assert idle is not None
    return Timings(iteration_s, reward_s, train_s, between_s, wait_s, drafts, *idle)


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--preset", default="shapes-stale")
    parser.add_argument("--quick", action="store_true", help="one turn of 6 iterations instead of two of 12")
    arguments = parser.parse_args()
    turns, iterations = (1, 6) if arguments.quick else (2, 12)
    runs: dict[str, list[Timings]] = {"plain": [], "stale": []}
    for _ in range(turns):
        for strategy, members in runs.items():
            members.append(measure(arguments.preset, iterations, strategy))

    def median(strategy: str, name: str) -> float:
        return statistics.median(value for run in runs[strategy] for value in getattr(run, name))

    iteration_s = median("plain", "iteration_s")
    added_s = median("stale", "between_s") - median("plain", "between_s")
    waits = [value for run in runs["stale"] for value in run.wait_s]
    figures = {
        "added_s": added_s,
        "added_share": added_s / iteration_s,
        "explore_wait_s_median": statistics.median(waits),
        "explore_wait_s_max": max(waits),
        "iteration_s_plain": iteration_s,
        "iteration_s_stale": median("stale", "iteration_s"),
        "reward_s_plain": median("plain", "reward_s"),
        "reward_s_stale": median("stale", "reward_s"),
        "train_s_plain": median("plain", "train_s"),
        "train_s_stale": median("stale", "train_s"),
        "drafts_per_window": median("stale", "drafts"),
        "spot_idle_plain": statistics.fmean(run.spot_idle for run in runs["plain"]),
        "spot_idle_stale": statistics.fmean(run.spot_idle for run in runs["stale"]),
        "reserved_idle_plain": statistics.fmean(run.reserved_idle for run in runs["plain"]),
        "reserved_idle": statistics.fmean(run.reserved_idle for run in runs["stale"]),
        "same_bits": same_bits(arguments.preset),
        "iterations_measured": len(waits),
        "preset": arguments.preset,
    }
    finish("overlap", figures, arguments)


if __name__ == "__main__":
    main()
