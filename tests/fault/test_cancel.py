"""Cancel in the Prefect UI while Ray starts; of a run under way it is in `test_deployments.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from flows.server.local_server import LocalServer
from storage.home import Home
from storage.record.run_store import RunRow, RunStore
from tests.running_up import client_of, wait_until

pytestmark = pytest.mark.slow

SETTINGS = ("iterations=400", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.every=0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home")).ensure()


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[LocalServer]:
    server = LocalServer(home, 0)
    server.wait_ready()
    yield server
    server.stop()


def start_run(home: Home, server: LocalServer, run_id: str) -> subprocess.Popen[str]:
    sets = [item for setting in SETTINGS for item in ("--set", setting)]
    command = [sys.executable, "-m", "flows.cli.command_line", "train", "--preset", "smoke"]
    return subprocess.Popen(
        [*command, "--run-id", run_id, *sets],
        env=os.environ | server.client_environment | {"SPOTLIGHT_HOME": str(home.path)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def commands(processes: list[psutil.Process]) -> str:
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return "\n".join(found)


def cancel(home: Home, server: LocalServer, run_id: str) -> str:
    """Press Cancel; the flow run's identifier."""
    named = {"flow_runs": {"name": {"any_": [run_id]}}}
    client = client_of(home)
    (run,) = client.post(f"{server.note.api_url}/flow_runs/filter", json=named).json()
    answer = client.post(
        f"{server.note.api_url}/flow_runs/{run['id']}/set_state", json={"state": {"type": "CANCELLING"}}
    )
    assert answer.json()["status"] == "ACCEPT"
    return run["id"]


def assert_it_is_over(
    home: Home, server: LocalServer, child: subprocess.Popen[str], family: list[psutil.Process], flow_run: str
) -> RunRow:
    rest, _ = child.communicate(timeout=200)
    assert child.returncode == 143, rest
    state = client_of(home).get(f"{server.note.api_url}/flow_runs/{flow_run}").json()
    assert state["state"]["type"] == "CANCELLED"
    row = RunStore(home).run(state["name"])
    assert row.status == "cancelled"
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process.cmdline() for process in alive] == []
    return row


def test_a_run_that_is_cancelled_while_ray_starts_does_not_wait_for_it(home: Home, server: LocalServer):
    child = start_run(home, server, "early")
    try:
        family: list[psutil.Process] = []

        def starts() -> bool:
            family[:] = psutil.Process(child.pid).children(recursive=True)
            return "gcs_server" in commands(family)

        wait_until("Ray starts", starts)
        flow_run = cancel(home, server, "early")
        wait_until("the run ends", lambda: child.poll() is not None)
    finally:
        child.kill()
    row = assert_it_is_over(home, server, child, family, flow_run)
    assert row.last_iteration is None
