"""kill -9 of a Prefect server that is not the run's own: the run goes on, and ends, without any.

That one of its own is started again is tested in `test_killed_run.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from flows.server.local_server import LocalServer
from storage.home import Home
from storage.record.run_store import RunStore
from tests.killed_run import lines_until

pytestmark = pytest.mark.slow

ITERATIONS = 6
SETTINGS = (
    f"iterations={ITERATIONS}", "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.cluster=local",
)  # fmt: skip
LIMIT_S = 90
"""From the kill to the end of the run, of which the rest of its work is about five seconds."""


def started(home: Home, run_id: str, **environment: str) -> subprocess.Popen[str]:
    sets = [item for setting in SETTINGS for item in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.announced_run", "train", "-p", "smoke", "--run-id", run_id, *sets],
        env=os.environ | {"SPOTLIGHT_HOME": str(home.path)} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_a_run_finishes_without_a_server_that_is_not_ours(tmp_path):
    home = Home(tmp_path).ensure()
    server = LocalServer(home, 0)
    try:
        server.wait_ready()
        # Fewer retries for the test's sake: Prefect's own five take a minute, and that twice.
        child = started(home, "foreign", **server.client_environment | {"PREFECT_CLIENT_MAX_RETRIES": "2"})
        lines_until(child, "ITERATION 1\n")
        lines_until(child, "PHASE train\n")
        family = psutil.Process(child.pid).children(recursive=True)
        os.kill(server.note.pid, signal.SIGKILL)
        output, _ = child.communicate(timeout=LIMIT_S)
    finally:
        server.stop()
    assert child.returncode == 0, output
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    row = RunStore(home).run("foreign")
    assert (row.status, row.last_iteration) == ("finished", ITERATIONS)
    assert (result["run_id"], result["score_after"]) == ("foreign", row.summary["score_after"])
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process.cmdline() for process in alive] == []
    assert "the Prefect server went away and did not come back" in output
    assert "run foreign is complete all the same" in output
    assert output.count("Unable to connect") <= 1, "Prefect says for every event that nobody takes it"
