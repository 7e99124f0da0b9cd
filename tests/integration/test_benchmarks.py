"""Benchmarks with a kept result still run: each in its shortest form, where that takes at most 20 s.

So does the rehearsal of what is measured on a GPU, every stage at a small size. The others take minutes in
any form; their parts are tested beside what they measure.
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
    answer = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
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


@pytest.mark.timeout(900)
def test_all_stages_of_what_is_measured_on_a_gpu_run_on_the_cpu(tmp_path: Path):
    figures = figures_of("gpu_day", f"--tiny --budget-s 800 --out {tmp_path / 'out'}", tmp_path)
    assert (figures["stages"], figures["failed"]) == (5, 0), figures
    assert figures["bits_equal"] is True and figures["ratio_deviation_float32"] == 0
    assert figures["workers_lost"] >= 1 and figures["runtime_peak_gib"] > 0
    parts = {
        **figures["by_stage"]["qwen_image"]["figures"]["parts"],
        **figures["by_stage"]["variants"]["figures"]["parts"],
    }
    assert parts["step_1280_b1"]["step_s"] > 0 and parts["train_512_compiled"]["train_s"] > 0
    assert parts["first_step_512_compiled"]["first_step_s"] > parts["step_512_compiled"]["step_s"]
    assert (
        parts["samples_512"] | {"resumed_equal": True, "other_neighbours_equal": True} == parts["samples_512"]
    )
    for name in ("rollout_512_mfu", "train_512_mfu", "rollout_vs_diffusers", "score_gain", "added_share"):
        assert isinstance(figures[name], float), name
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "gpu_day.json", "glyphs-before.png", "glyphs-after.png",
        *(f"timeline-{name}.png" for name in ("disturbed", "undisturbed", "plain")),
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_a_stage_that_is_killed_leaves_the_results_of_the_others(tmp_path: Path):
    figures = figures_of(
        "gpu_day", "--tiny --budget-s 800 --only qwen_image,bits --fault qwen_image=kill", tmp_path
    )
    assert (figures["stages"], figures["failed"]) == (2, 1)
    assert figures["by_stage"]["qwen_image"]["error"] == "ended by signal or exit -9"
    assert figures["limit_tflops"] > 0, "its first part had been reported"
    assert figures["bits_equal"] is True
