"""kill -9 of the Prefect server in a live run: the run goes on, with a new server or with none."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psutil
import pytest

from benchmarks.resume import find
from flows.server.local_server import LocalServer
from flows.server.ports import LOOPBACK, SERVER_PORT
from storage.database.run_store import RunStore
from storage.home import Home

pytestmark = pytest.mark.slow

ITERATIONS = 6
SETTINGS = (
    f"iterations={ITERATIONS}", "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.cluster=local",
)  # fmt: skip
LIMIT_S = 90
"""From the kill to the end of the run, of which the rest of its work is about five seconds."""


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path).ensure()


def started(home: Home, run_id: str, **environment: str) -> subprocess.Popen[str]:
    sets = [item for setting in SETTINGS for item in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.announced_run", "train", "-p", "smoke", "--run-id", run_id, *sets],
        env=os.environ | {"SPOTLIGHT_HOME": str(home.path)} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@contextmanager
def first_port_taken() -> Iterator[None]:
    """A server that starts meanwhile listens where no other one of this machine will want to."""
    with socket.socket() as listener:
        with suppress(OSError):  # another server has it
            listener.bind((LOOPBACK, SERVER_PORT))
            listener.listen()
        yield


def wait_for(child: subprocess.Popen[str], wanted: str) -> None:
    assert child.stdout is not None
    seen = []
    for line in child.stdout:
        seen.append(line)
        if line.startswith(wanted):
            return
    raise AssertionError(f"ended before {wanted!r}: {''.join(seen)}")


def check_finished(home: Home, run_id: str, child: subprocess.Popen[str]) -> str:
    """The run ends soon, whole and alone; returns what it still printed."""
    family = psutil.Process(child.pid).children(recursive=True)
    killed_at = time.monotonic()
    output, _ = child.communicate(timeout=LIMIT_S)
    print(f"ended {time.monotonic() - killed_at:.1f} s after the kill")
    assert child.returncode == 0, output
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    row = RunStore(home).run(run_id)
    assert (row.status, row.last_iteration) == ("finished", ITERATIONS)
    assert result["run_id"] == run_id
    assert result["score_after"] == row.summary["score_after"]
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [process.cmdline() for process in alive] == []
    return output


def test_a_server_of_our_own_is_started_again(home):
    with first_port_taken():  # while it is dead, a test beside this one could take its port
        child = started(home, "own")
        wait_for(child, "ITERATION 1")
    wait_for(child, "PHASE train")
    os.kill(find("server", child), signal.SIGKILL)
    output = check_finished(home, "own", child)
    assert "the Prefect server ended with code -9" in output
    assert "Traceback" not in output
    # The new one knows the run, and was told its end.
    with closing(sqlite3.connect(home.prefect / "prefect.db")) as prefect:
        assert prefect.execute("SELECT name, state_type FROM flow_run").fetchall() == [("own", "COMPLETED")]


def test_a_run_finishes_without_a_server_that_is_not_ours(home):
    server = LocalServer(home, 0)
    try:
        server.wait_ready()
        # Fewer retries for the test's sake: Prefect's own five take a minute, and that twice.
        child = started(home, "foreign", **server.client_environment | {"PREFECT_CLIENT_MAX_RETRIES": "2"})
        wait_for(child, "ITERATION 1")
        wait_for(child, "PHASE train")
        os.kill(server.pid, signal.SIGKILL)
        output = check_finished(home, "foreign", child)
    finally:
        server.stop()
    assert "the Prefect server went away and did not come back" in output
    assert "run foreign is complete all the same" in output
    assert output.count("Unable to connect") <= 1, "Prefect says for every event that nobody takes it"
