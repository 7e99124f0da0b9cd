"""A whole run turns to no other machine: no library reports its use, none looks for a newer version."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from storage.processes import NO_REPORTS
from tests.contacts import contacts, needs_strace
from tests.running_up import ROOT

pytestmark = [needs_strace, pytest.mark.slow, pytest.mark.timeout(600)]

TURNS_ELSEWHERE = """
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    outside = socket.socket(socket.AF_INET, kind)
    outside.setblocking(False)
    outside.connect_ex(("192.0.2.1", 9))
    if kind == socket.SOCK_DGRAM:
        outside.connect(("192.0.2.2", 9))  # without a word
question = bytes.fromhex("000001000001000000000000") + b"\\x06mobile\\x07example\\x00\\x00\\x01\\x00\\x01"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(question, ("127.0.0.1", 53))
"""


def environment(home: Path) -> dict[str, str]:
    """As of a person's shell, without what this process has set."""
    kept = {name: value for name, value in os.environ.items() if name not in NO_REPORTS}
    return {name: value for name, value in kept.items() if not name.startswith("PREFECT_")} | {
        "SPOTLIGHT_HOME": str(home), "HOME": str(home.parent),
    }  # fmt: skip


def test_what_turns_elsewhere_is_seen(tmp_path: Path):
    command = [sys.executable, "-c", TURNS_ELSEWHERE]
    found = contacts(command, os.environ, tmp_path, tmp_path / "trace", 60)
    assert found == {"192.0.2.1:9", "mobile.example"}


COMMAND = ["-m", "flows.cli.command_line", "train", "--preset", "smoke", "--set", "iterations=2", "--cluster"]

LIBRARY = """
import spotlight
small = {"algorithm.prompts_per_iteration": 4, "exploration.prompts": 6, "exploration.candidates": 6}
small |= {"iterations": 2, "exploration.monitor_prompts": 2}
spotlight.train("glyphs-stale", settings=small, cluster="local")
"""


@pytest.mark.parametrize("run", [[*COMMAND, "ray"], [*COMMAND, "local"], ["-c", LIBRARY]])
def test_a_run_with_its_scorers_turns_to_this_machine_alone(tmp_path: Path, run: list[str]):
    found = contacts([sys.executable, *run], environment(tmp_path / "home"), ROOT, tmp_path / "trace", 500)
    assert found == set()
    made = {path.name for path in tmp_path.iterdir()}
    assert made <= {"home", "trace", ".ray"}, (
        "libraries keep an identifier of the machine in its owner's folder"
    )
