"""The flow run whose process was killed gets the state of its run, and no other flow run is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import get_current_settings
from prefect.states import Cancelling, Completed, Pending, Running

from flows.process.ended_flow_runs import (
    HOME,
    PROCESS,
    close_flow_runs_of_deployments,
    close_flow_runs_of_ended_processes,
    process_of,
)
from storage.clock import process_start_s
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.records import RunStatus
from storage.record.run_status import Process, this_process
from storage.record.run_store import RunStore
from tests.fault import test_run_guard
from tests.running_up import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]  # a Prefect server

GONE: Process = (this_process()[0], 2**22 + 1, 1.0)
"""A process of this machine that has ended: no process has that number."""

NOTE = """
import os
from types import SimpleNamespace
from flows.process.ended_flow_runs import note_process
note_process(None, SimpleNamespace(id=os.environ["FLOW_RUN"]), None)
"""


@flow(name="post-train")
def training() -> None:
    """Stands for the flow whose process is killed."""


def running(name: str, process: Process | None, attempt: int = 1, home: str = "") -> UUID:
    """A flow run that Prefect takes for a living one; it names its process, unless that is None."""
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(training, name=name, state=Running()).id
        if process is not None:
            named, home = json.dumps([*process, attempt]), home or os.environ["SPOTLIGHT_HOME"]
            client.update_flow_run_labels(made, {PROCESS: named, HOME: home})
    return made


def flow_run(flow_run_id: UUID) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run_id)


def state(flow_run_id: UUID) -> tuple[str, str | None]:
    found = flow_run(flow_run_id).state
    assert found is not None
    return found.type.value, found.message


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """The process of a run, until it is killed."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def process(child: subprocess.Popen[bytes]) -> Process:
    return this_process()[0], child.pid, process_start_s(child.pid)


@pytest.mark.parametrize(
    ("status", "shown"),
    [("running", "CRASHED"), ("cancelled", "CANCELLED"), ("failed", "FAILED"), ("finished", "COMPLETED")],
)
def test_it_gets_the_state_of_the_run(
    home: Home, child: subprocess.Popen[bytes], status: RunStatus, shown: str
):
    store, name = RunStore(home), f"killed-{status}"
    store.create_run(name, RunConfig(), {}, child.pid)
    flow_run_id = running(name, process(child))
    if status != "running":
        store.set_status(name, status, "why")
    close_flow_runs_of_ended_processes(home)
    assert state(flow_run_id)[0] == "RUNNING", "its process may still say so itself"
    child.kill()
    child.wait()
    close_flow_runs_of_ended_processes(home)
    message = f"its process {child.pid} ended without a message" if status == "running" else "why"
    assert state(flow_run_id) == (shown, message)


def test_one_of_a_process_that_had_no_run_or_whose_run_goes_on_elsewhere_has_crashed(home: Home):
    RunStore(home).create_run("twice", RunConfig(), {}, os.getpid())
    left = [running(name, GONE) for name in ("twice", "new", "evaluate-glyphs")]
    close_flow_runs_of_ended_processes(home)
    assert [state(one) for one in left] == [("CRASHED", "its process was killed")] * 3


def test_what_may_go_on_is_left_alone(home: Home):
    own, elsewhere = this_process(), ("another-machine", 1, 1.0)
    RunStore(home).create_run("goes-on", RunConfig(), {}, own[1])
    left = [running("goes-on", each) for each in (own, elsewhere, None)]  # a form's names none at first
    left.append(running("run again", GONE, attempt=0))  # by a process that has not named itself yet
    with get_client(sync_client=True) as client:
        pending = client.create_flow_run(training, name="retried", state=Pending()).id
        client.update_flow_run_labels(pending, {PROCESS: json.dumps([*GONE, 0])})
        foreign = client.create_flow_run(training, state=Running()).id
        client.update_flow_run_labels(foreign, {PROCESS: "by another version"})
    close_flow_runs_of_ended_processes(home)
    assert [state(one)[0] for one in (*left, foreign)] == ["RUNNING"] * 5
    assert state(pending)[0] == "PENDING"


def test_one_of_another_home_is_left_to_its_commands(home: Home, tmp_path: Path):
    # Its process may be alive: of another container with this host's name, or hidden from this user.
    left = running("others", GONE, home=str(tmp_path))
    close_flow_runs_of_ended_processes(home)
    assert state(left)[0] == "RUNNING"
    close_flow_runs_of_ended_processes(Home(tmp_path))
    assert state(left) == ("CRASHED", "its process was killed")


@pytest.mark.parametrize("told", [False, True])
def test_what_a_process_records_and_tells_while_prefect_is_asked_counts(
    home: Home, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, told: bool
):
    store, name, read = RunStore(home), f"ending-{told}", SyncPrefectClient.read_flow_runs
    store.create_run(name, RunConfig(), {}, child.pid)
    flow_run_id = running(name, process(child))

    def answer(client: SyncPrefectClient, **filters: Any) -> list[FlowRun]:
        found = read(client, **filters)
        if child.poll() is None:
            store.set_status(name, "finished", "at its budget")
            if told:
                client.set_flow_run_state(flow_run_id, Completed(message="told"))
            child.kill()
            child.wait()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SyncPrefectClient, "read_flow_runs", answer)
        close_flow_runs_of_ended_processes(home)
    assert state(flow_run_id) == ("COMPLETED", "told" if told else "at its budget")


def test_one_of_another_machine_is_closed_once_its_run_was_taken_over(home: Home):
    store, there = RunStore(home), ("machine-that-is-gone", 7, 1.0)
    store.create_run("taken", RunConfig(), {}, os.getpid())
    host, pid, began_s = there
    moved = {"host": host, "pid": pid, "process_started_at": began_s}
    store.folder("taken").change("run.json", lambda run: run | moved)
    flow_run_id = running("taken", there)
    close_flow_runs_of_ended_processes(home)
    assert state(flow_run_id)[0] == "RUNNING"
    store.take_over(replace(store.run("taken")))
    close_flow_runs_of_ended_processes(home)
    assert state(flow_run_id)[0] == "CRASHED"


def test_all_of_a_deployment_are_closed_when_it_is_served_again(home: Home):
    with get_client(sync_client=True) as client:
        made = [client.create_deployment(client.create_flow(training), name) for name in ("mine", "other's")]
        left, other = (
            client.create_flow_run_from_deployment(one, name="formed", state=Running()).id for one in made
        )
    close_flow_runs_of_deployments(made[:1])
    assert state(left) == ("CRASHED", "its process was killed")
    assert state(other)[0] == "RUNNING"


def command(home: Home, *arguments: str) -> subprocess.Popen[bytes]:
    """A command that uses the server of the tests."""
    url = get_current_settings().api.url
    assert url is not None
    environment = os.environ | {"SPOTLIGHT_HOME": str(home.path), "PREFECT_API_URL": url}
    line = [sys.executable, "-m", "flows.cli.command_line", *arguments]
    return subprocess.Popen(line, env=environment, cwd=Path(__file__).parents[3])


def flow_run_of(child: subprocess.Popen[bytes]) -> FlowRun:
    """The flow run that a command has begun."""
    found: list[FlowRun] = []

    def begun() -> bool:
        with get_client(sync_client=True) as client:
            named = [(process_of(one), one) for one in client.read_flow_runs()]
        found[:] = [one for whose, one in named if whose == process(child)]
        return bool(found)

    wait_until("the flow runs", begun)
    return found[0]


@pytest.mark.parametrize(
    "arguments",
    [("pretrain", "shapes", "--out", "models"), ("evaluate", "--preset", "smoke", "--cluster", "local")],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("end", ["kill", "cancel"])
def test_a_command_that_trains_no_run_is_closed_too_and_ends_by_cancel(
    home: Home, tmp_path: Path, arguments: tuple[str, ...], end: str
):
    given = [str(tmp_path / each) if each == "models" else each for each in arguments]
    child = command(home, *given)
    try:
        begun = flow_run_of(child)
        assert begun.name.startswith(arguments[0])
        if end == "kill":
            child.kill()
            child.wait()
            close_flow_runs_of_ended_processes(home)
        else:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(begun.id, Cancelling())
            assert child.wait(120) == 128 + signal.SIGTERM
        assert state(begun.id)[0] == {"kill": "CRASHED", "cancel": "CANCELLED"}[end]
    finally:
        child.kill()
        child.wait()


def test_the_guard_tells_a_server_that_lives(
    prefect_server: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    url = get_current_settings().api.url
    assert url is not None
    flow_run_id = running("r", None)
    monkeypatch.setenv("PREFECT_API_URL", url)
    monkeypatch.setenv("FLOW_RUN", str(flow_run_id))
    monkeypatch.setattr(test_run_guard, "RUN", NOTE + test_run_guard.RUN)
    test_run_guard.run(Home(tmp_path_factory.mktemp("guarded")), "out of memory")
    assert state(flow_run_id)[0] == "CRASHED"
