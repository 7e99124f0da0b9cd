"""What `spotlight runs` and `spotlight presets` print on a terminal of 80 columns, and to another program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.config.loading import list_presets
from storage.config.run_config import RunConfig
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation
from storage.home import Home
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run
from tests.terminal import ROOT, Terminal

LONG = "an-identifier-that-somebody-has-chosen-with-great-care-20261121-101500-a1b2"
USUAL = "glyphs-20261121-101500-a1b2"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("home"))
    for run_id in (USUAL, LONG):
        write_sample_run(RunStore(home), run_id, iterations=1)
    return home


def on_terminal(home: Home, command: str) -> str:
    """What a command shows on a terminal of 80 columns."""
    with Terminal([command], {"SPOTLIGHT_HOME": str(home.path)}, columns=80) as terminal:
        assert terminal.wait() == 0, terminal.shown
        return terminal.shown


def piped(home: Home, command: str) -> str:
    """What another program gets of a command."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.command_line", command],
        env=environment | {"SPOTLIGHT_HOME": str(home.path)}, cwd=ROOT,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def test_identifiers_can_be_copied_from_a_terminal_and_a_pipe(home: Home):
    for shown in (on_terminal(home, "runs"), piped(home, "runs")):
        words = shown.split()
        assert LONG in words and USUAL in words
        assert "finished" in shown and "1/40" in shown


def test_a_run_of_before_the_clock_was_set_back_took_no_negative_time(tmp_path: Path):
    store = RunStore(Home(tmp_path).ensure())
    store.create_run("r", RunConfig(), {}, os.getpid(), at=time.time() + 1000)
    assert "0:00:00" in piped(store.home, "runs")


def test_identifiers_of_evaluations_can_be_copied_too(home: Home):
    row = SeparateEvaluation(
        f"evaluate-{LONG}", LONG, 1, 1, 1.7e9, 1.7e9, 0.5, 0.25, 0, None,
        RunConfig().model_dump(mode="json"), {},
    )  # fmt: skip
    EvaluationStore(home).commit(row, [])
    for shown in (on_terminal(home, "evaluations"), piped(home, "evaluations")):
        words = shown.replace(",", " ").split()
        assert f"evaluate-{LONG}" in words and LONG in words
        assert "0.500" in words


def test_descriptions_of_presets_are_whole_and_break_between_words(home: Home):
    shown = on_terminal(home, "presets")
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "tried on" in shown and "tried on" not in piped(home, "presets")
    listed = [line.split() for line in piped(home, "presets").splitlines()]
    for preset in list_presets():
        line = f"{preset.name} {preset.evidence} {preset.summary}"
        assert line in " ".join(shown.split())
        assert line.split() in listed
