"""Overhead of Prefect, Ray and storage over a bare torch loop of the same iteration.

Both sides compute the same iterations of the same preset on one device and one scorer, one after
the other: the bare loop in one process, the orchestrated one through the real flow (Prefect server,
Ray actors, DuckDB, MLflow, a checkpoint each iteration). Work that the flow does beside a rollout (the
previous commit, the server) uses another core if there is one, and counts only if it slows the iteration.
Both take turns, and the medians of all turns are compared, because machines are noisy.

    python -m benchmarks.overhead [--quick]
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.commands import final_state, train
from benchmarks.report import finish, options
from storage.config.loading import load_config
from storage.home import Home
from storage.record.run_store import RunStore

_ONE_DEVICE = (
    "runtime.spot_workers=0",
    "runtime.scorer_workers=1",
    "evaluation.every=0",
    "evaluation.prompts=1",
)


def bare(preset: str, iterations: int) -> tuple[list[float], str]:
    """Return the seconds of each iteration after the first, and the weights' digest."""
    code = (
        "import json, os, sys; from benchmarks.cost.bare_loop import run;"
        "from storage.config.loading import load_config;"
        "c = load_config(sys.argv[1], sys.argv[3:], os.environ); r = run(c, int(sys.argv[2]));"
        "print(json.dumps([r.iteration_s[1:], r.digest]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, preset, str(iterations), *_ONE_DEVICE],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    seconds, digest = json.loads(answer.stdout.splitlines()[-1])
    return seconds, digest


def orchestrated(preset: str, iterations: int) -> tuple[list[float], str]:
    """Return the seconds between ends of successive iterations of a real run, and the weights' digest."""
    from safetensors.numpy import load

    from gpu_runtime.learning.weights import weights_digest

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        train(home, "overhead", preset, (f"iterations={iterations}", *_ONE_DEVICE))
        with RunStore(Home(home)).reading() as connection:
            rows = connection.execute("SELECT ended_at FROM iterations ORDER BY iteration").fetchall()
        weights = load(final_state(home, "overhead")["weights.safetensors"])
    return [b - a for (a,), (b,) in itertools.pairwise(rows)], weights_digest(weights)


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__, "one turn of 4 iterations instead of two of 8")
    parser.add_argument("--preset", default="glyphs")
    arguments = parser.parse_args()
    load_config(arguments.preset, [], os.environ)
    turns, iterations = (1, 4) if arguments.quick else (2, 8)
    compute: list[float] = []
    whole: list[float] = []
    digests: set[str] = set()
    for _ in range(turns):
        for seconds, (values, digest) in (
            (compute, bare(arguments.preset, iterations)),
            (whole, orchestrated(arguments.preset, iterations)),
        ):
            seconds += values
            digests.add(digest)
    compute_s, iteration_s = statistics.median(compute), statistics.median(whole)
    figures = {
        "iteration_s": iteration_s,
        "compute_s": compute_s,
        "overhead_ratio": iteration_s / compute_s - 1,
        "iterations_measured": len(whole),
        "identical_weights": len(digests) == 1,
        "preset": arguments.preset,
    }
    finish("overhead", figures, arguments)


if __name__ == "__main__":
    main()
