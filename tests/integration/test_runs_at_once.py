"""Five runs of three homes at the same moment: each ends as if alone, in the books of its home's server."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.people.attack import attack_train
from flows.server.note import ServerNote, living_server
from storage.home import Home
from tests.light_run import books, ended, started
from tests.running_up import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUNS = {"a1": ("a", 1), "a2": ("a", 40), "b1": ("b", 40), "b2": ("b", 1), "c1": ("c", 5)}
"""Run -> home, tasks: in a home some end long before others, and perhaps its server with them."""


def test_five_runs_of_three_homes_started_at_once_end_as_if_alone(tmp_path: Path):
    homes = {name: Home(tmp_path / name).ensure() for name in "abc"}
    running = {run: started(homes[home], run, tasks) for run, (home, tasks) in RUNS.items()}
    servers: dict[str, ServerNote] = {}

    def all_serve() -> bool:
        servers.update({name: note for name, home in homes.items() if (note := living_server(home))})
        return len(servers) == len(homes)

    wait_until("each home has its server", all_serve)
    for run, child in running.items():
        home, tasks = RUNS[run]
        came_to, _ = ended(child)
        assert came_to == {
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
