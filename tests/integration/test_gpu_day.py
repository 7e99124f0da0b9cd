"""The rehearsal of what is measured on a GPU: every stage at a small size on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def rehearsed(*arguments: str) -> dict[str, Any]:
    """The JSON line of a rehearsal, with time enough on a busy machine."""
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_day", "--tiny", "--budget-s", "800",
         *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.timeout(900)
def test_all_stages_run_on_the_cpu(tmp_path: Path):
    figures = rehearsed("--out", str(tmp_path))
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
    assert {path.name for path in tmp_path.iterdir()} == {
        "gpu_day.json", "glyphs-before.png", "glyphs-after.png",
        *(f"timeline-{name}.png" for name in ("disturbed", "undisturbed", "plain")),
    }  # fmt: skip


@pytest.mark.timeout(600)
def test_a_stage_that_is_killed_leaves_the_results_of_the_others():
    figures = rehearsed("--only", "qwen_image,bits", "--fault", "qwen_image=kill")
    assert (figures["stages"], figures["failed"]) == (2, 1)
    assert figures["by_stage"]["qwen_image"]["error"] == "ended by signal or exit -9"
    assert figures["limit_tflops"] > 0, "its first part had been reported"
    assert figures["bits_equal"] is True
