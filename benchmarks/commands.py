"""Live runs of `spotlight`: its command line, and the state that a run ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from storage.home import HOME_VARIABLE, Home
from storage.record.checkpoints import CheckpointStore


def spotlight(*arguments: str, settings: Sequence[str] = ()) -> list[str]:
    """Return the command line of `spotlight`, with settings over those of a preset."""
    sets = (part for value in settings for part in ("--set", value))
    return [sys.executable, "-m", "flows.cli.command_line", *arguments, *sets]


def train(home: Path, run_id: str, preset: str, settings: Sequence[str]) -> None:
    """Do a run without a word.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    command = spotlight("train", "--preset", preset, "--run-id", run_id, settings=settings)
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {HOME_VARIABLE: str(home)})


def final_state(home: Path, run_id: str) -> dict[str, bytes]:
    """Return weights, moving average and optimiser of a run's last checkpoint; empty where there is none."""
    checkpoint = CheckpointStore(Home(home).run(run_id)).load_latest()
    return {} if checkpoint is None else dict(checkpoint.blobs)
