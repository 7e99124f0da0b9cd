"""Work goes on, and ends as it would, where nobody takes what it prints."""

from __future__ import annotations

import os
import shlex
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
        reporter().note(f"iteration {number} of many: 一只猫")
    print("a line: 一只猫", flush=True)
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


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_the_encoding_lacks_a_character(tmp_path: Path, encoding: str):
    answer = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path / "done")], capture_output=True, check=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (tmp_path / "done").exists()
    cat = "一只猫".encode(encoding, "backslashreplace").decode()
    assert answer.stdout.decode().splitlines()[-2:] == [f"iteration 4999 of many: {cat}", f"a line: {cat}"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_the_process_has_no_output(tmp_path: Path, closed: str):
    command = shlex.join([sys.executable, "-c", WORK, str(tmp_path / "done")])
    answer = subprocess.run(f"{command} {closed}", shell=True)
    assert (answer.returncode, (tmp_path / "done").exists()) == (0, True)


def test_a_program_closes_its_output_meanwhile(tmp_path: Path):
    code = WORK.replace("def work():", "def work():\n    sys.stdout.close(), sys.stderr.close()")
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "done")]).returncode == 0
    assert (tmp_path / "done").exists()
