"""Cancel in the Prefect UI ends a run in order, and the run can go on later."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import psutil
import pytest

from flows.prefect_server import LocalServer, free_port
from storage.home import Home
from storage.run_store import RunStore

SETTINGS = ("iterations=400", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.every=0")


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path).ensure()


@pytest.fixture
def server(home):
    server = LocalServer(home, free_port(4300))
    server.wait_ready()
    yield server
    server.stop()


def test_cancelling_from_the_ui_ends_cleanly(home, server):
    sets = [item for setting in SETTINGS for item in ("--set", setting)]
    child = subprocess.Popen(
        [sys.executable, "-m", "flows.command_line", "train", "--preset", "smoke", "--run-id", "c", *sets],
        env=os.environ | {"SPOTLIGHT_HOME": str(home.path), "PREFECT_API_URL": server.api_url},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if "iteration 2/" in line:
            break
    family = psutil.Process(child.pid).children(recursive=True)
    assert any("ray::" in " ".join(process.cmdline()) for process in family)
    (run,) = httpx.post(f"{server.api_url}/flow_runs/filter", json={}).json()
    answer = httpx.post(
        f"{server.api_url}/flow_runs/{run['id']}/set_state", json={"state": {"type": "CANCELLING"}}
    )
    assert answer.json()["status"] == "ACCEPT"
    rest, _ = child.communicate(timeout=60)
    assert child.returncode == 143, rest
    state = httpx.get(f"{server.api_url}/flow_runs/{run['id']}").json()["state"]
    assert state["type"] == "CANCELLED"
    row = RunStore(home).run("c")
    assert row.status == "cancelled"
    assert row.last_iteration is not None and row.last_iteration >= 1
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [process.cmdline() for process in alive] == []
