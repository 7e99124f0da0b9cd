"""A run that only keeps the books in Prefect: `python -m tests.light_run NAME TASKS`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from flows.process.ended_flow_runs import note_process
from flows.process.stopping import stops_in_order
from flows.server.local_server import without_prefect
from flows.server.prefect_server import prefect_server
from storage.home import Home

ROOT = Path(__file__).resolve().parents[1]


def started(
    home: Home, name: str, tasks: int, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A run of so many tasks of a fifth of a second, as a process of its own."""
    own = {"SPOTLIGHT_HOME": str(home.path), "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.light_run", name, str(tasks)],
        cwd=folder, env=without_prefect(os.environ) | own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(run: subprocess.Popen[str]) -> tuple[dict[str, object], str]:
    """The result of a run, and its whole output."""
    said = run.communicate(timeout=600)[0]
    assert run.returncode == 0 and "Traceback" not in said, said
    return json.loads(said.splitlines()[-1]), said


def books(home: Home) -> dict[str, tuple[str, int]]:
    """The state and the number of completed tasks of each run, as the home's server has recorded them."""
    query = """
        SELECT flow_run.name, flow_run.state_type, count(*) FILTER (WHERE task_run.state_type = 'COMPLETED')
        FROM flow_run LEFT JOIN task_run ON task_run.flow_run_id = flow_run.id GROUP BY flow_run.id
    """
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(home.prefect / "prefect.db")) as kept:
        return {name: (state, tasks) for name, state, tasks in kept.execute(query)}
    return {}  # it has none yet


def main() -> None:
    """Run a flow of that name with so many tasks; print where its books are, and what it came to."""
    name, tasks = sys.argv[1], int(sys.argv[2])
    home = Home.from_environment().ensure()
    with stops_in_order("Stopped."), prefect_server(home) as ui_url:
        from prefect import flow, task

        from flows.process.cancellation import cancellable

        @task
        def step(number: int) -> int:
            time.sleep(0.2)
            return number

        @flow(on_running=[note_process])
        def light() -> int:
            return sum(step(number) for number in range(tasks))

        with cancellable(name, "start it again"):
            result = light.with_options(flow_run_name=name)()
    print(json.dumps({"name": name, "result": result, "ui_url": ui_url.split(" ")[0]}))


if __name__ == "__main__":
    main()
