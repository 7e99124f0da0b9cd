"""Every input of the list `tests/bad_inputs.jsonl` is refused: one clear line, exit code 2, nothing started.

They run together in one process, and those that a library has to be asked about in another. One of each
command then runs as a person types it, and one of each command that loads such a library.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import HANG_S, entries, prepare

ENTRIES = entries()
SAMPLE = list({
    (entry["command"].partition(" ")[0], entry.get("loads", False)): entry
    for entry in sorted(reversed(ENTRIES), key=lambda entry: "home" not in entry["kind"])
}.values())  # fmt: skip
"""The first of each command, and of those that load a library; a wrong home only where nothing else is."""

ROOT = Path(__file__).resolve().parents[2]
HEADING = "settings are wrong:"


def test_the_list_is_long_enough_and_names_each_input_once():
    assert len(ENTRIES) >= 300
    assert len({entry["what"] for entry in ENTRIES}) == len(ENTRIES)


@functools.cache
def outcomes(loads: bool) -> dict[str, dict[str, Any]]:
    """What came of each entry that needs a library, or needs none, by what is wrong with it."""
    asked = [entry for entry in ENTRIES if entry.get("loads", False) == loads]
    answer = subprocess.run(
        [sys.executable, "-m", "tests.refusals"], cwd=ROOT, capture_output=True, text=True,
        input="\n".join(map(json.dumps, asked)), check=False,
    )  # fmt: skip
    lines = answer.stdout.splitlines()
    assert len(lines) == len(asked), f"ended at {asked[len(lines)]['what']!r}: {answer.stderr[-2000:]}"
    return {entry["what"]: json.loads(line) for entry, line in zip(asked, lines, strict=True)}


def is_refusal(entry: dict[str, Any], code: int, out: str, error: str) -> None:
    """One line (or one a setting, after how many there are), with what it must say."""
    assert "Traceback" not in error, error
    assert code == 2, (code, out, error)
    if not entry.get("loads"):  # else it was said what is being started
        assert out == ""
    assert error.startswith("error: ")
    lines = error.rstrip("\n").split("\n")
    assert len(lines) == 1 or HEADING in lines[0], error
    for words in [entry["says"]] if isinstance(entry["says"], str) else entry["says"]:
        assert words in error, error
    assert len(error) < 1500, f"{len(error)} characters"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["what"])
def test_it_is_refused(entry: dict[str, Any]):
    outcome = outcomes(entry.get("loads", False))[entry["what"]]
    is_refusal(entry, outcome["code"], outcome["out"], outcome["error"])
    if "runs" not in entry:
        assert outcome["made"] == []
    if not entry.get("loads"):
        assert outcome["loaded"] == [], "what can be known without them is refused before they are imported"


@pytest.mark.slow
@pytest.mark.parametrize("entry", SAMPLE, ids=lambda entry: entry["what"])
def test_one_of_each_command_as_it_is_typed(entry: dict[str, Any], record_property: Any):
    with tempfile.TemporaryDirectory() as folder:
        arguments, environment = prepare(entry, Path(folder))
        began = time.monotonic()
        answer = subprocess.run(
            [sys.executable, "-m", "flows.cli.command_line", *arguments], cwd=folder, capture_output=True,
            text=True, env=environment | {"PYTHONPATH": str(ROOT)}, timeout=HANG_S, check=False,
        )  # fmt: skip
        record_property("seconds", time.monotonic() - began)
    is_refusal(entry, answer.returncode, answer.stdout, answer.stderr)
