"""A run's process that vanishes: its guard marks the run, and says on the terminal what happened."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from storage.home import Home
from storage.record.run_store import RunStore

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import os, subprocess, sys
from pathlib import Path
from flows.process.run_guard import RunGuard
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.run_store import RunStore
home = Home(Path(sys.argv[1]))
store = RunStore(home)
store.create_run("r", RunConfig(), {}, os.getpid())
guard = RunGuard(home.path, "r", sys.argv[2])
first, second = (subprocess.Popen(["sleep", "20"], stderr=subprocess.DEVNULL) for _ in range(2))
guard.following({"Ray's dashboard agent": first.pid, "Ray's raylet": second.pid}).__enter__()
print("ready", flush=True)
match sys.stdin.readline().strip():
    case "orderly":
        store.set_status("r", "failed", "why")
        guard.close()
    case "ray":
        for process in (first, second):
            process.kill()
            process.wait()
            sys.stdin.readline()
        os._exit(1)
    case "guard":
        guard._process.kill()
        guard._process.wait()
        store.set_status("r", "finished")
        guard.close()
    case "out of memory":
        os.kill(os.getpid(), 9)
for process in (first, second):
    process.kill()
"""


def run(home: Home, *lines: str, address: str = "") -> tuple[int, str]:
    """Exit code and standard error of a run with these lines as its input, which joined a head or none."""
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, str(home.path), address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "ready\n"
    for line in lines:
        child.stdin.write(f"{line}\n")
        child.stdin.flush()
    code = child.wait()
    return code, child.stderr.read()  # to its end: the guard holds it open until it has spoken


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.mark.parametrize(
    ("end", "status", "error"), [("orderly", "failed", "why"), ("guard", "finished", None)]
)
def test_an_orderly_end_is_left_as_it_is_also_without_the_guard(home, end, status, error):
    assert run(home, end) == (0, "")
    row = RunStore(home).run("r")
    assert (row.status, row.error) == (status, error)


def test_what_ended_first_is_named(home):
    code, said = run(home, "ray", "", "")
    assert code == 1
    assert said.count("\n") == 1
    assert "Ray's dashboard agent and then Ray's raylet ended before it" in said
    assert "`spotlight resume r`" in said
    row = RunStore(home).run("r")
    assert row.status == "interrupted"
    assert "Ray's dashboard agent and then Ray's raylet" in (row.error or "")


def test_a_killed_process_is_interrupted(home):
    code, said = run(home, "out of memory")
    assert code == -signal.SIGKILL
    assert said.startswith("error: run r was interrupted after iteration 0: process ")
    assert said.count("\n") == 1
    assert RunStore(home).run("r").status == "interrupted"


def test_a_head_that_does_not_answer_is_named_with_how_to_go_on_elsewhere(home):
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        _, said = run(home, "out of memory", address=address)
        assert "perhaps killed, or out of memory" in said and address not in said
    code, said = run(Home(home.path / "other"), "out of memory", address=address)
    assert code == -signal.SIGKILL and said.count("\n") == 1
    assert f"without a message: the head of the Ray cluster at {address} no longer answers" in said
    assert "`spotlight resume r --ray-address HOST:PORT`" in said
    row = RunStore(Home(home.path / "other")).run("r")
    assert row.status == "interrupted" and f"at {address} no longer answers" in (row.error or "")
