"""However `spotlight up` ends, nothing of it is left; Ctrl-C is tested in `test_local_server.py`."""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest

from storage.home import DASHBOARD_URL_VARIABLE, Home
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tests.running_up import DASHBOARD, DEPLOYMENTS, SERVER, running_up, spotlight, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).ensure()


def test_nothing_outlives_its_kill_and_the_next_one_knows_how_its_run_ended_and_ends_with_its_server(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    """It is the server that dies: the others need it, and each of them is watched in the same way."""
    settings = [
        "runtime.cluster=local", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.every=0",
        "tracking.to=[]", "reward.scorer=jpeg",
    ]  # fmt: skip
    form = {"preset": "smoke", "iterations": 400, "settings": settings}
    with running_up(home) as up:
        flow_run = up.start_run("post-train", form, name="killed").json()
        wait_until("an iteration is done", lambda: any(row.last_iteration for row in RunStore(home).runs()))
        up.process.kill()
        up.process.wait()
        wait_until("nothing is left", lambda: not up.processes())
        row = RunStore(home).run("killed")
        assert row.status == "cancelled" and row.last_iteration == max(
            CheckpointStore(home.run("killed")).iterations()
        )
    monkeypatch.setenv(DASHBOARD_URL_VARIABLE, "https://proxy/spotlight")
    with running_up(home) as up:
        # A person's own address of the dashboard, such as a proxy's, is what runs link to.
        assert up.child(DEPLOYMENTS).environ()[DASHBOARD_URL_VARIABLE] == "https://proxy/spotlight"
        assert up.flow_run(flow_run["id"])["state"]["type"] == "CANCELLED"
        assert len(up.processes()) >= 3
        assert httpx.get(f"{up.dashboard}/_stcore/health", timeout=60).status_code == 200
        second = spotlight(home, "up", "--server-port", "4998", "--ui-port", "4999")
        assert second.returncode == 2
        assert f"is already running for {home.path} (process {up.process.pid}" in " ".join(
            second.stderr.split()
        )
        up.child(SERVER).kill()
        assert up.process.wait(200) == 1
        assert up.said(f"the Prefect server ended with code -9 (log: {home.logs}")
        up.assert_nothing_is_left()


def test_down_ends_what_a_killed_one_left(home: Home):
    with running_up(home) as up:
        # Suspended, the children cannot follow their parent's death: as if they hung.
        stopped = up.child(DEPLOYMENTS)
        for child in (stopped, up.child(DASHBOARD)):
            child.suspend()
        up.process.kill()
        up.process.wait()
        assert stopped.is_running()
        refused = spotlight(home, "up", "--server-port", "4998", "--ui-port", "4999")
        assert refused.returncode == 2
        assert "end them with `spotlight down`" in " ".join(refused.stderr.split())
        stopped.resume()
        ended = spotlight(home, "down")
        assert ended.returncode == 0, ended.stderr
        wait_until("all are gone", lambda: not up.processes())
        up.assert_nothing_is_left()
        assert "no process of `spotlight up` is left" in spotlight(home, "down").stdout
    assert not psutil.pid_exists(up.process.pid)
