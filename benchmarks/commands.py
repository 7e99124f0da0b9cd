"""Live runs of `spotlight`: command lines, settings of short runs, and a run's final state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from storage.home import HOME_VARIABLE, Home
from storage.record.checkpoints import CheckpointStore

SHORT = (
    "algorithm.prompts_per_iteration=4", "algorithm.group_size=8", "sampling.rollout_steps=6",
    "sampling.window_stop=5", "sampling.window_size=2", "sampling.evaluate_steps=4",
    "evaluation.prompts=8", "runtime.scorer_workers=1",
)  # fmt: skip
"""Settings of `glyphs` with which an iteration takes seconds."""


def sets(settings: Iterable[str]) -> list[str]:
    """Return settings as options of `spotlight`."""
    return [part for setting in settings for part in ("--set", setting)]


def spotlight(*arguments: str, settings: Sequence[str] = ()) -> list[str]:
    """Return the command line of `spotlight`, with settings over those of a preset."""
    return [sys.executable, "-m", "flows.cli.command_line", *arguments, *sets(settings)]


def train(home: Path, run_id: str, preset: str, settings: Sequence[str]) -> None:
    """Train a run without output.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    command = spotlight("train", "--preset", preset, "--run-id", run_id, settings=settings)
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {HOME_VARIABLE: str(home)})


def final_state(home: Path, run_id: str) -> dict[str, bytes]:
    """Return weights, moving average and optimiser of a run's last checkpoint; empty without one."""
    checkpoint = CheckpointStore(Home(home).run(run_id)).load_latest()
    return {} if checkpoint is None else dict(checkpoint.blobs)
