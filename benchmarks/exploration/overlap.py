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

import statistics
import tempfile
from pathlib import Path

import pandas as pd

from benchmarks.commands import final_state, train
from benchmarks.exploration.learning_curve import make_curve
from benchmarks.report import finish, options
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from storage.home import Home
from storage.record.run_store import RunStore

_SETTINGS = ("runtime.reserved_workers=1", "runtime.spot_workers=1", "runtime.scorer_workers=1",
             "evaluation.every=0", "evaluation.prompts=1", "evaluation.images_per_prompt=1")  # fmt: skip

_BITS_OF = 4
"""Iterations of the runs whose bits are compared."""

_COUNTED = ("exploration.strategy=stale", "exploration.drafts=192", "exploration.stop_with_training=false")
"""No number of theirs depends on how long anything takes."""

_ITERATIONS = """
    SELECT coalesce(max(value) FILTER (name = 'iteration_s'), 0) AS iteration_s,
        coalesce(max(value) FILTER (name = 'train_s'), 0) AS train_s,
        coalesce((SELECT n.value FROM iteration_metrics n
            WHERE n.iteration = m.iteration + 1 AND n.name = 'drafts'), 0) AS drafts,
        (SELECT min(started_at) FROM worker_states w
            WHERE w.iteration = m.iteration + 1 AND state = 'rollout')
        - (SELECT max(ended_at) FROM worker_states w WHERE w.iteration = m.iteration AND state = 'train')
        AS between_s
    FROM iteration_metrics m GROUP BY iteration ORDER BY iteration
"""
"""Seconds of an iteration and of its training, drafts judged in its window, and seconds from the end of the
training steps to the first rollout of the next iteration."""

_IDLE = """
    SELECT sum(ended_at - started_at) FILTER (state = 'idle') / sum(ended_at - started_at)
    FROM worker_states WHERE phase = 'iteration' AND market = 'spot'
        AND iteration > 1 AND iteration < (SELECT max(iteration) FROM iterations)
"""


def same_bits(preset: str) -> bool:
    """Whether a run that overlaps its phases ends as one that does them one after another."""
    values = (f"iterations={_BITS_OF}", *_COUNTED, *_SETTINGS)
    in_turns: dict[str, bytes] = {}

    def keep(runtime: Runtime) -> None:
        in_turns.update(runtime.blobs())

    make_curve(load_config(preset, values, {}), _BITS_OF, _BITS_OF, keep)
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), "overlap", preset, values)
        return final_state(Path(folder), "overlap") == in_turns


def measure(preset: str, iterations: int, strategy: str) -> tuple[pd.DataFrame, float]:
    """Do a run and read its time line.

    Returns:
        `_ITERATIONS` of those that have one before and one after them, and the idle share of the spot device.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = (f"iterations={iterations}", f"exploration.strategy={strategy}", *_SETTINGS)
        train(Path(folder), "overlap", preset, values)
        with RunStore(Home(Path(folder))).reading() as connection:
            rows = connection.execute(_ITERATIONS).df()
            idle = connection.execute(_IDLE).fetchone()
    assert idle is not None
    # The first window has no forecast yet, and the last iteration nothing to explore for.
    whole = rows.iloc[1:-1]
    assert whole.notna().all(axis=None), "each of them was followed by a rollout"
    return whole, float(idle[0])


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "one turn of 6 iterations instead of two of 12")
    parser.add_argument("--preset", default="shapes-stale")
    arguments = parser.parse_args()
    turns, iterations = (1, 6) if arguments.quick else (2, 12)
    runs: dict[str, list[tuple[pd.DataFrame, float]]] = {"plain": [], "stale": []}
    for _ in range(turns):
        for strategy, members in runs.items():
            members.append(measure(arguments.preset, iterations, strategy))
    rows = {strategy: pd.concat([found for found, _ in members]) for strategy, members in runs.items()}

    def median(strategy: str, name: str) -> float:
        return statistics.median(float(value) for value in rows[strategy][name])

    added_s = median("stale", "between_s") - median("plain", "between_s")
    figures = {
        "added_s": added_s,
        "added_share": added_s / median("plain", "iteration_s"),
        "train_s_plain": median("plain", "train_s"),
        "train_s_stale": median("stale", "train_s"),
        "drafts_per_window": median("stale", "drafts"),
        "spot_idle_plain": statistics.fmean(idle for _, idle in runs["plain"]),
        "spot_idle_stale": statistics.fmean(idle for _, idle in runs["stale"]),
        "same_bits": same_bits(arguments.preset),
        "iterations_measured": len(rows["stale"]),
        "preset": arguments.preset,
    }
    finish("overlap", figures, arguments)


if __name__ == "__main__":
    main()
