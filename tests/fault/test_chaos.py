"""`spotlight chaos` on tiny runs: faults are really done, and every promise is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.home import Home
from storage.pictures import CLIP_BYTES, read_frames
from storage.record.run_store import RunStore
from tests.killed_run import served
from tests.running_up import ROOT

SETTINGS = (
    "iterations=3", "sampling.batch_size=4", "runtime.commit_steps=1", "runtime.scorer_workers=1",
    "runtime.cluster=local", "algorithm.prompts_per_iteration=4", "algorithm.group_size=4",
    "sampling.rollout_steps=4", "sampling.evaluate_steps=4", "sampling.window_size=3",
    "sampling.window_stop=3", "evaluation.prompts=4", "evaluation.every=0", "tracking.to=[]",
)  # fmt: skip
FAULTS = [
    {"kind": "kill_while_committing", "iteration": 0, "phase": "rollout"},
    {"kind": "scorer_death", "iteration": 0, "phase": "reward"},
    {"kind": "kill", "iteration": 1, "phase": "rollout"},
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def chaos(home: Path, preset: str, *arguments: str) -> dict[str, Any]:
    """What the command says of a tiny run."""
    command = [sys.executable, "-m", "flows.cli.command_line", "chaos", "--preset", preset, *arguments]
    answer = subprocess.run(
        command, env=os.environ | {"SPOTLIGHT_HOME": str(home)}, capture_output=True, text=True, timeout=800
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("chaos")) as folder:
        yield folder


def test_a_run_of_clips_keeps_its_promises_under_three_faults(home, tmp_path):
    schedule = tmp_path / "faults.json"
    schedule.write_text(json.dumps(FAULTS))
    lines = (ROOT / "presets/prompts/moving-shapes-evaluate.txt").read_text().splitlines()
    (held_out := tmp_path / "held-out.txt").write_text("\n".join(lines[:4]))
    settings = (*SETTINGS, f"prompts.evaluate={held_out}")
    sets = [item for value in settings for item in ("--set", value)]
    result = chaos(home, "moving-shapes", "--schedule", str(schedule), *sets)
    assert (result["faults"], result["faults_left"]) == (3, 0)
    assert sorted(result["faults_by_kind"]) == ["kill", "kill_while_committing", "scorer_death"]
    assert result["broken_promises"] == [] and result["identical_weights"] and result["ledger_adds_up"]
    assert result["lost"] == result["duplicated_deliveries"] == result["hangs"] == 0
    # 16 samples of three iterations, and two of each held-out prompt before and after, in one run or more.
    assert result["samples"] == result["runs"] * (3 * 16 + 2 * 2 * 4)
    store = RunStore(Home(home))
    rows = store.runs()
    assert {row.status for row in rows} == {"finished"} and len(rows) == 1 + result["runs"]
    assert {row.environment["purpose"] for row in rows} == {"chaos"}, "marked on the dashboard"
    with store.reading() as record:
        kept = record.execute(
            "SELECT png FROM evaluation_images WHERE png IS NOT NULL UNION ALL "
            "SELECT png FROM sample_images WHERE png IS NOT NULL"
        ).fetchall()
    clips = [content for (content,) in kept]
    assert clips and {read_frames(content).shape for content in clips} == {(8, 24, 24, 3)}
    assert max(map(len, clips)) <= CLIP_BYTES


def test_a_run_keeps_its_promises_while_instances_come_and_go(home, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,a\n30000,add,b\n60000,remove,a\n120000,remove,b\n")
    settings = ("iterations=4", "runtime.scorer_workers=1", "tracking.to=[]")
    sets = [item for value in settings for item in ("--set", value)]
    result = chaos(home, "smoke", "--trace", str(trace), *sets)
    assert (result["trace"], result["instances_in_trace"], result["most_at_once"]) == ("trace.csv", 2, 2)
    assert result["faults"] == result["instances_removed"] >= 1
    assert result["instances_added"] + result["instances_skipped"] >= result["instances_removed"]
    assert result["broken_promises"] == [] and result["identical_weights"] and result["ledger_adds_up"]
