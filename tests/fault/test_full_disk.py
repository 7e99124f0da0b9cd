"""The home's disk is full while a run trains: one line says so, and the run goes on once there is room."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.home import Home
from storage.processes import python_command
from storage.record.run_store import RunStore
from tests.running_up import ROOT, spotlight, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = (
    "iterations=6", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.prompts=4",
    "reward.scorer=jpeg",
)  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of the test's own; of 300 MB, of which a run takes some."""
    (folder := tmp_path / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounts nothing: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(file: Path) -> None:
    """Write until not a byte more fits."""
    size = 2**16
    with file.open("ab", buffering=0) as filler:
        while size:
            try:
                filler.write(bytes(size))
            except OSError:
                size //= 2


def test_a_run_ends_with_the_cause_in_one_line_and_is_resumed(disk: Path, tmp_path: Path):
    home, log = Home(disk / "home").ensure(), tmp_path / "log"
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    command = python_command("-m", "flows.cli.command_line", "train", "--preset", "smoke", "--run-id", "full")
    with log.open("wb") as output:
        run = subprocess.Popen(
            [*command, "--cluster", "local", *sets], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, env=os.environ | {"SPOTLIGHT_HOME": str(home.path)},
        )  # fmt: skip
    copied = home.path / "mlflow.db"
    wait_until("it is copied to MLflow", lambda: copied.exists() or run.poll() is not None)
    fill(disk / "filler")
    assert run.wait(300) == 2
    said = log.read_text()
    assert re.fullmatch(r"error: cannot .*No space left on device; free disk space .*", said.splitlines()[-1])
    assert "Traceback" not in said
    (disk / "filler").unlink()
    done = spotlight(home, "resume", "full", "--cluster", "local")
    assert done.returncode == 0, done.stderr
    assert RunStore(home).run("full").status == "finished"
