"""Ctrl-C and a second one end `spotlight train` in order: one line, and one state everywhere.

SIGTERM, which Cancel sends, is in `test_cancel.py` and in `test_deployments.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import psutil
import pytest

from flows.server.local_server import LocalServer
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tests.running_up import client_of
from tests.terminal import CTRL_C, Terminal

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


def started(home: Home, server: LocalServer, run_id: str, cluster: str, *settings: str) -> Terminal:
    sets = [item for setting in (*SETTINGS, *settings) for item in ("--set", setting)]
    return Terminal(
        ["train", "--preset", "smoke", "--run-id", run_id, "--cluster", cluster, *sets],
        server.client_environment | {"SPOTLIGHT_HOME": str(home.path)},
    )


def assert_cancelled_everywhere(home: Home, server: LocalServer, run_id: str) -> None:
    """In the database, of the flow run and of each of its task runs that had begun."""
    row = RunStore(home).run(run_id)
    assert (row.status, row.error) == ("cancelled", "stopped by Ctrl-C")
    client, named = client_of(home), {"flow_runs": {"name": {"any_": [run_id]}}}
    (flow_run,) = client.post(f"{server.note.api_url}/flow_runs/filter", json=named).json()
    assert flow_run["state"]["type"] == "CANCELLED"
    deadline = time.monotonic() + 120  # the server takes up the states of task runs in its own time
    while True:
        found = client.post(f"{server.note.api_url}/task_runs/filter", json=named).json()
        states = {run["name"]: run["state"]["type"] for run in found}
        # The one that was cancelled may be the last that the server hears of.
        known = "CANCELLED" in states.values() and not {"RUNNING", "PENDING"} & set(states.values())
        if known or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert "CANCELLED" in states.values(), states
    assert set(states.values()) <= {"COMPLETED", "CANCELLED"}, states


def assert_one_line(shown: str, run_id: str) -> int:
    """It said how far the run came and how to go on, and nothing else of its end; that iteration."""
    last = re.search(
        rf"^(?:\^C)*Stopped after iteration (\d+) of 400\. Continue: spotlight resume {run_id}$", shown, re.M
    )
    assert last, shown
    assert shown.count("Stopped") == 1
    for word in ("Crash", "Traceback", "ERROR", "Finished in state", "error:"):
        assert word not in shown, shown
    return int(last[1])


def stop(home: Home, server: LocalServer, run_id: str, cluster: str) -> None:
    """Start a run, stop it in its second iteration or later, and look at what it left."""
    explores = "exploration.strategy=stale"  # a task beside the others
    # The rollout takes seconds: the signal does not find the flow between two of its tasks.
    long = "sampling.rollout_steps=200"
    with started(home, server, run_id, cluster, explores, long) as terminal:
        terminal.wait_for("1/400")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        for _ in range(2):
            terminal.press(CTRL_C)
            time.sleep(0.3)
        code = terminal.wait()
        shown = terminal.shown
    assert code == 130, shown
    done = assert_one_line(shown, run_id)
    assert_cancelled_everywhere(home, server, run_id)
    assert RunStore(home).run(run_id).last_iteration == done
    assert max(CheckpointStore(home.run(run_id)).iterations()) == done
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process.cmdline() for process in alive] == []


def test_ctrl_c_pressed_twice(home: Home, server: LocalServer):
    stop(home, server, "c", "local")


@pytest.mark.slow
def test_ctrl_c_pressed_twice_with_ray(home: Home, server: LocalServer):
    stop(home, server, "ray", "ray")


@pytest.mark.slow
def test_ctrl_c_before_the_run_has_begun(home: Home, server: LocalServer):
    with started(home, server, "early", "local") as terminal:
        terminal.wait_for("starting run early: 400 iterations of 16 images")
        terminal.press(CTRL_C)
        terminal.press(CTRL_C)
        assert terminal.wait() == 130
        shown = terminal.shown.replace("^C", "").rstrip()  # the terminal may show the second one at the end
        assert shown.endswith("Stopped before the run began; nothing is kept.")
        assert "Traceback" not in terminal.shown
    assert "early" not in [row.run_id for row in RunStore(home).runs()]
