"""Benchmarks with a kept result still run: each in its shortest form, where that takes seconds.

The others take minutes in any form; their parts are tested beside what they measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_up import ROOT

pytestmark = pytest.mark.slow

SHORTEST = {
    "bare_loop": "--preset smoke --iterations 1",
    "families": "--only sd3.5",
    "geneval_logic": "",
    "paper_tables": "--quick",
    "push_or_pull": "--quick --modelled-only",
    "scheduler": "--quick",
    "simulator": "--quick",
}
"""Name -> its arguments."""


@pytest.mark.parametrize("name", SHORTEST)
def test_it_runs_and_has_the_figures_that_were_kept(name: str, tmp_path: Path):
    command = [sys.executable, "-m", f"benchmarks.{name}", *SHORTEST[name].split()]
    environ = os.environ | {"SPOTLIGHT_HOME": str(tmp_path / "home")}
    answer = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr[-2000:]
    figures = json.loads(answer.stdout.splitlines()[-1])
    kept = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert figures.keys() & kept["figures"].keys(), "other figures than those that documents show"
