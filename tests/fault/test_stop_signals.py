"""Ctrl-C and a second one end `spotlight train` in order: one line, and one state everywhere.

So does Cancel in the Prefect UI while Ray starts; of a run under way it is in `test_deployments.py`. A server
that is not the run's own may be lost; that one of its own is started again is tested in `test_killed_run.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import psutil
import pytest

from flows.server.local_server import LocalServer
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tests.running_up import client_of, wait_until
from tests.terminal import CTRL_C, Terminal

SETTINGS = (
    "iterations=400", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.every=0",
    "tracking.to=[]", "reward.scorer=jpeg",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home")).ensure()


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[LocalServer]:
    server = LocalServer(home, first_port=0)
    server.wait_ready()
    yield server
    server.stop()


def started(
    home: Home, server: LocalServer, run_id: str, cluster: str, *settings: str, **environment: str
) -> Terminal:
    sets = [item for setting in (*SETTINGS, *settings) for item in ("--set", setting)]
    return Terminal(
        ["train", "--preset", "smoke", "--run-id", run_id, "--cluster", cluster, *sets],
        server.client_environment | {"SPOTLIGHT_HOME": str(home.path)} | environment,
    )


def flow_run_of(home: Home, server: LocalServer, run_id: str) -> Mapping[str, Any]:
    named = {"flow_runs": {"name": {"any_": [run_id]}}}
    (found,) = client_of(home).post(f"{server.note.api_url}/flow_runs/filter", json=named).json()
    return found


def assert_none_is_left(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process.cmdline() for process in alive] == []


def assert_cancelled_everywhere(home: Home, server: LocalServer, run_id: str) -> None:
    """In the database, of the flow run and of each of its task runs that had begun."""
    row = RunStore(home).run(run_id)
    assert (row.status, row.error) == ("cancelled", "stopped by Ctrl-C")
    assert flow_run_of(home, server, run_id)["state"]["type"] == "CANCELLED"
    client, named = client_of(home), {"flow_runs": {"name": {"any_": [run_id]}}}
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


def stop(home: Home, server: LocalServer, run_id: str, cluster: str, *settings: str) -> None:
    """Start a run, stop it in its second iteration or later, and look at what it left."""
    explores = "exploration.strategy=stale"  # a task beside the others
    # The rollout takes seconds: the signal does not find the flow between two of its tasks.
    long = "sampling.rollout_steps=200"
    with started(home, server, run_id, cluster, explores, long, *settings) as terminal:
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
    store = RunStore(home)
    assert store.run(run_id).last_iteration == done
    with store.reading(run_id) as connection:
        paid = connection.execute("SELECT iteration, usd > 0 FROM costs WHERE phase = 'discarded'").fetchall()
    assert paid and set(paid) == {(done + 1, True)}, "the bill has the iteration that was stopped"
    assert max(CheckpointStore(home.run(run_id)).iterations()) == done
    assert_none_is_left(family)


def test_ctrl_c_pressed_twice(home: Home, server: LocalServer):
    stop(home, server, "c", "local")


@pytest.mark.slow
def test_ctrl_c_pressed_twice_with_ray(home: Home, server: LocalServer):
    stop(home, server, "ray", "ray", 'tracking.to=["mlflow"]')


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


@pytest.mark.slow
def test_a_run_that_is_cancelled_while_ray_starts_does_not_wait_for_it(home: Home, server: LocalServer):
    with started(home, server, "cancelled", "ray") as terminal:
        family: list[psutil.Process] = []

        def starts() -> bool:
            family[:] = psutil.Process(terminal.process.pid).children(recursive=True)
            commands: list[str] = []
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    commands += process.cmdline()
            return any("gcs_server" in word for word in commands)

        wait_until("Ray starts", starts)
        flow_run = f"{server.note.api_url}/flow_runs/{flow_run_of(home, server, 'cancelled')['id']}"
        asked = client_of(home).post(f"{flow_run}/set_state", json={"state": {"type": "CANCELLING"}})
        assert asked.json()["status"] == "ACCEPT"
        assert terminal.wait() == 143, terminal.shown
    assert flow_run_of(home, server, "cancelled")["state"]["type"] == "CANCELLED"
    row = RunStore(home).run("cancelled")
    assert (row.status, row.last_iteration) == ("cancelled", None)
    assert_none_is_left(family)


@pytest.mark.slow
def test_a_run_finishes_without_a_server_that_is_not_ours(home: Home, server: LocalServer):
    """Last in this file: there is no server afterwards."""
    settings = ("iterations=6", "evaluation.every=50")
    # Fewer retries for the test's sake: Prefect's own five take a minute, and that twice.
    with started(home, server, "foreign", "local", *settings, PREFECT_CLIENT_MAX_RETRIES="2") as terminal:
        terminal.wait_for("1/6")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        os.kill(server.note.pid, signal.SIGKILL)
        assert terminal.wait(200) == 0, terminal.shown
        shown = terminal.shown
    row = RunStore(home).run("foreign")
    assert (row.status, row.last_iteration) == ("finished", 6)
    assert (
        json.loads(re.findall(r"^\{.*\}$", shown, re.M | re.S)[-1])["score_after"]
        == row.summary["score_after"]
    )
    assert_none_is_left(family)
    said = " ".join(shown.split())
    assert "the Prefect server went away and did not come back" in said
    assert "run foreign is complete all the same" in said
    assert said.count("Unable to connect") <= 1, "Prefect repeats it for every event that it cannot send"
