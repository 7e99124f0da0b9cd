"""Five runs of three homes at the same moment: each ends as if alone, in the books of its own server."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.people.attack import attack_train
from flows.server.note import ServerNote, living_server
from storage.home import Home
from tests.running_up import ROOT, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUNS = {"a1": ("a", 1), "a2": ("a", 60), "b1": ("b", 60), "b2": ("b", 1), "c1": ("c", 5)}
"""Run -> home, tasks: in a home some end long before others."""


def started(home: Home, run_id: str, tasks: int) -> subprocess.Popen[str]:
    environment = os.environ | {"SPOTLIGHT_HOME": str(home.path)}
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.light_run", run_id, str(tasks)],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def books(home: Home) -> dict[str, tuple[str, int]]:
    """What a home's server has recorded: run -> state, completed tasks."""
    query = """
        SELECT flow_run.name, flow_run.state_type, count(*) FILTER (WHERE task_run.state_type = 'COMPLETED')
        FROM flow_run LEFT JOIN task_run ON task_run.flow_run_id = flow_run.id GROUP BY flow_run.id
    """
    with closing(sqlite3.connect(home.prefect / "prefect.db")) as kept:
        return {name: (state, tasks) for name, state, tasks in kept.execute(query)}


def test_five_runs_of_three_homes_started_at_once_end_as_if_alone(tmp_path: Path):
    homes = {name: Home(tmp_path / name).ensure() for name in "abc"}
    running = {run: started(homes[home], run, tasks) for run, (home, tasks) in RUNS.items()}
    servers: dict[str, ServerNote] = {}

    def all_serve() -> bool:
        servers.update({name: note for name, home in homes.items() if (note := living_server(home))})
        return len(servers) == len(homes)

    wait_until("each home has its server", all_serve)
    said = {run: child.communicate(timeout=600)[0] for run, child in running.items()}
    for run, child in running.items():
        home, tasks = RUNS[run]
        assert child.returncode == 0, said[run]
        assert "Traceback" not in said[run]
        assert json.loads(said[run].splitlines()[-1]) == {
            "name": run, "result": tasks * (tasks - 1) // 2, "ui_url": servers[home].ui_url,
        }  # fmt: skip
    assert len({server.ui_url for server in servers.values()}) == len(homes)
    for name, home in homes.items():
        expected = {run: ("COMPLETED", tasks) for run, (where, tasks) in RUNS.items() if where == name}
        assert books(home) == expected
        assert living_server(home) is None, "the last run of a home has ended its server"


def test_a_foreign_page_writes_starts_and_reads_nothing_of_a_training_run(tmp_path: Path):
    tries = attack_train(Home(tmp_path / "home").ensure(), tmp_path / "started-by-an-attack")
    assert {one.aim for one in tries} == {"write", "start", "read", "preflight"}
    assert any(one.what.startswith("Ray") for one in tries)
    assert [one for one in tries if one.succeeded] == []
