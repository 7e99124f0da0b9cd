"""What `spotlight train` prints while it starts: a line at once, then each stage with its time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STAGES = (
    "check the model and the scorer, load the libraries",
    "start the Prefect server",
    "start 1 reserved",
)


def test_a_line_comes_before_the_heavy_imports_and_then_each_stage_with_its_time(tmp_path: Path):
    command = [sys.executable, "-X", "importtime", "-m", "flows.cli.command_line", "train"]
    done = subprocess.run(
        [*command, "--preset", "smoke", "--cluster", "local", "--run-id", "r", "--set", "iterations=1"],
        cwd=ROOT, env=os.environ | {"SPOTLIGHT_HOME": str(tmp_path / "home")}, timeout=300, check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    # Both go through one pipe, so their order is that of time.
    heavy = [re.search(rf"\| +{name}\n", done.stdout) for name in ("prefect", "mlflow")]
    first = done.stdout.index("starting run r: 1 iterations")
    assert all(found is not None and first < found.start() for found in heavy)
    assert re.search(r"\| +torch\n", done.stdout) is None, "only the devices' processes need it"
    lines = [line for line in done.stdout.splitlines() if re.match(r" *\d+\.\d s  ", line)]
    assert len(lines) == len(STAGES)
    assert all(stage in line for stage, line in zip(STAGES, lines, strict=True)), lines
