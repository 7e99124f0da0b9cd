"""A package outside the repository adds a scorer, a strategy, an objective and a family, by either name.

Its run shows, too, what `spotlight train` prints while it starts: a line at once, then a line a stage.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from storage.home import HOME_VARIABLE, Home

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

FAMILY = """
    import dataclasses

    from gpu_runtime.learning.registry import OBJECTIVES
    from gpu_runtime.models.registry import FAMILIES
    from storage.config.section import Section


    class Options(Section):
        note: str = ""


    FAMILY = dataclasses.replace(FAMILIES.find("embedded"), check=lambda settings: None, options=Options)
    OBJECTIVE = dataclasses.replace(OBJECTIVES.find("grpo"))
"""

ENTRY_POINTS = """
    [spotlight.scorers]
    colourful = own_reward:COLOURFUL
    [spotlight.strategies]
    best-and-worst = own_strategy:BEST_AND_WORST
    [spotlight.families]
    theirs = their_family:FAMILY
    [spotlight.objectives]
    their-grpo = their_family:OBJECTIVE
"""

SETTINGS = {
    # Two by module and name, two by entry point.
    "reward.scorer": "own_reward:COLOURFUL", "exploration.strategy": "best-and-worst",
    "model.family": "theirs", "algorithm.objective": "their_family:OBJECTIVE",
    "reward.options.full_at": "60", "exploration.options.best": "0.25", "model.options.note": "of theirs",
    "runtime.cluster": "local", "runtime.spot_workers": "1", "runtime.scorer_workers": "1",
    "iterations": "2", "evaluation.every": "0", "evaluation.prompts": "4",
    "prompts.evaluate": "builtin:smoke-evaluate",
    "algorithm.prompts_per_iteration": "4", "algorithm.group_size": "4",
    "exploration.candidates": "8", "exploration.drafts": "24", "exploration.stop_with_training": "false",
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder for the environment's path, as an installed distribution leaves it."""
    folder = tmp_path / "site"
    folder.mkdir()
    for example in ("own_reward", "own_strategy"):
        (folder / f"{example}.py").write_text((EXAMPLES / f"{example}.py").read_text())
    (folder / "their_family.py").write_text(textwrap.dedent(FAMILY))
    info = folder / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    return folder


def trained(package: Path, *python: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The command `train` as a module of Python; both outputs go through one pipe, in the order of time."""
    environ = os.environ | {HOME_VARIABLE: str(package / "home"), "PYTHONPATH": str(package)}
    sets = [item for name, value in (SETTINGS | changes).items() for item in ("--set", f"{name}={value}")]
    return subprocess.run(
        [sys.executable, *python, "-m", "flows.cli.command_line", "train", "--preset", "glyphs", *sets],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=240, check=False, cwd=package,
    )  # fmt: skip


STAGES = (
    "check the model and the scorer, load the libraries", "start the Prefect server", "start 1 reserved",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_of_what_another_package_adds_and_the_lines_with_which_it_starts(package: Path):
    ran = trained(package, "-X", "importtime")
    assert ran.returncode == 0, ran.stdout[-2000:]
    result = json.loads(re.findall(r"^\{.*\}$", ran.stdout, re.MULTILINE)[-1])
    assert result["iterations"] == 2
    assert result["drafts"] > 0
    assert 0 < result["score_after"] < 1
    assert "exact_after" not in result, "a scorer without a verdict calls no image exact"
    heavy = [re.search(rf"\| +{name}\n", ran.stdout) for name in ("prefect", "mlflow")]
    first = re.search(r"^starting run \S+: 2 iterations", ran.stdout, re.MULTILINE)
    assert first is not None
    assert all(found is not None and first.start() < found.start() for found in heavy)
    assert re.search(r"\| +torch\n", ran.stdout) is None, "only the devices' processes need it"
    lines = [line for line in ran.stdout.splitlines() if re.match(r" *\d+\.\d s  ", line)]
    assert len(lines) == len(STAGES)
    assert all(stage in line for stage, line in zip(STAGES, lines, strict=True)), lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reward.options.full_at": "-1"}, "reward.options.full_at = -1 (from --set): must be above 0"),
        ({"exploration.options.bst": "1"}, "exploration.options.bst (from --set): no such setting; did"),
        ({"model.options.note": "3"}, "model.options.note = 3 (from --set): must be text"),
        ({"reward.scorer": "own_reward:COLORFUL"}, "cannot be imported (AttributeError"),
    ],
)
def test_their_options_are_checked_before_anything_starts(package: Path, change: dict[str, str], says: str):
    ran = trained(package, **change)
    assert ran.returncode != 0
    assert says in " ".join(ran.stdout.split())
    assert not Home(package / "home").database.exists(), "nothing was started"
