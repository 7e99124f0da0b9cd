"""`spotlight settings`, `--version` and what the shell completes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from flows.cli.command_line import app
from storage.config.loading import list_presets
from storage.config.settings_table import list_settings, settings_page


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return result.stdout


def test_the_json_has_an_entry_for_each_setting():
    facts = json.loads(said("settings", "--json"))
    assert facts.keys() == {entry.name for entry in list_settings()}
    assert facts["sampling.noise_level"]["default"] == 0.7
    assert facts["sampling.noise_level"]["bounds"] == "number above 0, at most 2"
    assert json.loads(said("settings", "checkpoint", "--json")).keys() == {
        "checkpoint.every", "checkpoint.mirror",
    }  # fmt: skip


def test_the_table_and_the_page():
    table = said("settings", "sampling")
    assert "sampling.noise_level" in table and "coefficient-preserving" in table
    assert "runtime" not in table
    assert said("settings", "--markdown") == settings_page()


def test_the_version():
    assert said("--version") == f"spotlight {version('spotlight')}\n"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("spotlight setti", ["settings"]),
        (
            "spotlight train --preset glyphs",
            [preset.name for preset in list_presets() if preset.name.startswith("glyphs")],
        ),
        ("spotlight doctor --set sampling.window", ["sampling.window_size=", "sampling.window_stop="]),
    ],
)
def test_the_shell_completes(typed: str, expected: list[str]):
    place = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    program = "from flows.cli.command_line import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**place, "_SPOTLIGHT_COMPLETE": "complete_bash"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.stdout.split() == expected, answer.stderr


@pytest.mark.parametrize(
    ("word", "setting"),
    [("lr", "optimizer.learning_rate"), ("preemption", "runtime."), ("algo", "algorithm.objective")],
)
def test_a_word_finds_settings(word: str, setting: str):
    assert setting in said("settings", word)
