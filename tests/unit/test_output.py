"""Work goes on, and ends as it would, where nobody takes what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import logging, sys
from flows.output import output_may_fail
from flows.progress import reporter

@output_may_fail()
def work():
    for number in range(5000):
        reporter().note(f"iteration {number} of many")
    print("a line", flush=True)
    logging.warning("a warning")
    open(sys.argv[1], "w").close()

work()
"""


def outcome(output: int, done: Path) -> int:
    """The exit code of a process that works, and prints and warns meanwhile."""
    return subprocess.run([sys.executable, "-c", WORK, str(done)], stdout=output, stderr=output).returncode


def test_the_reader_of_a_pipe_has_left(tmp_path: Path):
    reading, writing = os.pipe()
    os.close(reading)
    assert (outcome(writing, tmp_path / "done"), (tmp_path / "done").exists()) == (0, True)
    os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
@pytest.mark.parametrize("command", [None, ("settings", "--json")])
def test_the_disk_of_a_log_is_full(tmp_path: Path, command: tuple[str, ...] | None):
    with open("/dev/full", "wb") as full:
        if command is None:
            assert (outcome(full.fileno(), tmp_path / "done"), (tmp_path / "done").exists()) == (0, True)
            return
        entry = [sys.executable, "-m", "flows.cli.command_line", *command]
        assert subprocess.run(entry, stdout=full, stderr=full).returncode == 0
