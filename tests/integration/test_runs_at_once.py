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

from benchmarks.attack import Prey, attack
from flows.local_server import LocalServer
from flows.server_note import ServerNote, living_server
from storage.checkpoints import CheckpointStore
from storage.home import Home
from storage.run_store import RunStore
from tests.running_up import ROOT, client_of, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT_S = 600
SETTINGS = (
    "runtime.spot_workers=0", "runtime.scorer_workers=1", "evaluation.every=0", "evaluation.prompts=4",
    "evaluation.gallery=0",
)  # fmt: skip
RUNS = {"a1": ("a", 1), "a2": ("a", 3), "b1": ("b", 3), "b2": ("b", 1), "c1": ("c", 2)}
"""Run -> home, iterations: in a home some end long before others."""


def started(home: Home, run_id: str, iterations: int) -> subprocess.Popen[str]:
    sets = [part for each in (*SETTINGS, f"iterations={iterations}") for part in ("--set", each)]
    environment = os.environ | {"SPOTLIGHT_HOME": str(home.path)}
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", "flows.command_line", "train", "--preset", "smoke", "--run-id", run_id, *sets],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def weights(home: Home, run_id: str) -> dict[str, bytes]:
    newest = CheckpointStore(home.checkpoints(run_id), 1).load_latest()
    assert newest is not None
    return newest.blobs


def test_five_runs_of_three_homes_at_once_and_an_attack_meanwhile(tmp_path: Path):
    homes = {name: Home(tmp_path / name).ensure() for name in "abc"}
    running = {run: started(homes[home], run, iterations) for run, (home, iterations) in RUNS.items()}
    servers: dict[str, ServerNote] = {}

    def all_serve() -> bool:
        servers.update({name: note for name, home in homes.items() if (note := living_server(home))})
        return len(servers) == len(homes)

    wait_until("each home has its server", all_serve)
    attacked = LocalServer(homes["c"])  # one more that uses it, so that it stays until the attack is over
    try:
        attacked.wait_ready()
        assert attacked.pid == servers["c"].pid, "the one that `train` has started"
        tries = attack(Prey(attacked.ui_url, client_of(homes["c"])), tmp_path / "started-by-an-attack")
    finally:
        attacked.stop()
    assert len(tries) >= 10
    assert [one for one in tries if one.succeeded] == []
    said = {run: child.communicate(timeout=LIMIT_S)[0] for run, child in running.items()}
    for run, child in running.items():
        home, iterations = RUNS[run]
        assert child.returncode == 0, said[run]
        assert "Traceback" not in said[run]
        assert servers[home].ui_url in said[run], "the server of its own home"
        result = json.loads(said[run].splitlines()[-1])
        row = RunStore(homes[home]).run(run)
        assert (result["run_id"], row.status, row.last_iteration) == (run, "finished", iterations)
    assert weights(homes["a"], "a1") == weights(homes["b"], "b2")
    assert weights(homes["a"], "a2") == weights(homes["b"], "b1") != weights(homes["a"], "a1")
    assert len({server.ui_url for server in servers.values()}) == len(homes)
    for name, home in homes.items():
        with closing(sqlite3.connect(home.prefect / "prefect.db")) as books:
            kept = dict(books.execute("SELECT name, state_type FROM flow_run").fetchall())
        assert kept == {run: "COMPLETED" for run, (where, _) in RUNS.items() if where == name}
        wait_until("its server has ended", lambda home=home: living_server(home) is None)
