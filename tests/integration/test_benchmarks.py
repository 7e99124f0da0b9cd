"""Benchmarks with a kept result still run: each in its shortest form, where that takes at most 20 s.

The others take minutes in any form; their parts are tested beside what they measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running_up import ROOT

pytestmark = pytest.mark.slow

SHORTEST = {
    "allocation": "--quick",
    "families": "--only sd3.5",
    "simulator": "--quick",
}
"""Name -> its arguments."""

LEFT_OUT = {"growth_10_to_10000"}
"""Figures of a kept result that the shortest form does not have: it goes to 100 devices."""


def figures_of(name: str, arguments: str, home: Path) -> dict[str, Any]:
    """The JSON line of a benchmark."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments.split()]
    environ = os.environ | {"SPOTLIGHT_HOME": str(home)}
    answer = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SHORTEST)
def test_it_runs_and_has_the_figures_that_were_kept(name: str, tmp_path: Path):
    figures = figures_of(name, SHORTEST[name], tmp_path / "home")
    kept = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert not kept["figures"].keys() - figures.keys() - LEFT_OUT


def test_the_loop_that_overhead_compares_with_runs_alone(tmp_path: Path):
    figures = figures_of("bare_loop", "--preset smoke --iterations 1", tmp_path / "home")
    assert figures.keys() >= {"iteration_s", "rollout_s", "reward_s", "train_s", "images_per_s"}


def test_the_kept_curves_give_the_figures_that_the_readme_has(tmp_path: Path):
    kept = json.loads(
        (ROOT / "benchmarks" / "results" / "exploration-ocr-graded.json").read_text(encoding="utf-8")
    )
    arguments = kept["command"].partition("benchmarks.exploration ")[2].removesuffix(" --keep")
    figures = figures_of("exploration", arguments, tmp_path / "home")
    # Tuning curves of the other objective may have come since.
    assert figures | {"tuning": None} == kept["figures"] | {"tuning": None}
    assert figures["tuning"]["chosen"] == kept["figures"]["tuning"]["chosen"]
