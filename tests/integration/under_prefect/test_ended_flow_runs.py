"""The flow run of a run whose process was killed gets the run's state, and no other flow run is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow, flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import get_current_settings
from prefect.states import Running

from flows.process.ended_flow_runs import close_earlier_flow_runs, close_flow_runs_of_ended_runs
from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.records import RunStatus
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from tests.fault.test_run_guard import run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]  # a Prefect server


@flow(name="post-train")
def training() -> None:
    """Stands for the flow whose process is killed."""


@flow(name="evaluate")
def other() -> None:
    """A flow whose flow runs bear no run's name but by accident."""


def running(name: str, of: Flow[..., Any] = training) -> UUID:
    """A flow run that Prefect takes for a living one."""
    with get_client(sync_client=True) as client:
        return client.create_flow_run(of, name=name, state=Running()).id


def running_by_form(name: str) -> UUID:
    """The same of a deployment: it is made before its process begins the log."""
    with get_client(sync_client=True) as client:
        deployment_id = client.create_deployment(client.create_flow(training), "post-train")
        return client.create_flow_run_from_deployment(deployment_id, name=name, state=Running()).id


def state(flow_run_id: UUID) -> tuple[str, str | None]:
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(flow_run_id).state
    assert found is not None
    return found.type.value, found.message


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """The process of a run, until it is killed."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


@pytest.mark.parametrize(
    ("status", "shown"),
    [("running", "CRASHED"), ("cancelled", "CANCELLED"), ("failed", "FAILED"), ("finished", "COMPLETED")],
)
def test_it_gets_the_state_of_the_run(
    home: Home, process: subprocess.Popen[bytes], status: RunStatus, shown: str
):
    store, name = RunStore(home), f"killed-{status}"
    store.create_run(name, RunConfig(), {}, process.pid)
    flow_run_id = running(name)
    if status != "running":
        store.set_status(name, status, "why")
    close_flow_runs_of_ended_runs(home)
    assert state(flow_run_id)[0] == "RUNNING", "its process may still say so itself"
    process.kill()
    process.wait()
    close_flow_runs_of_ended_runs(home)
    message = f"its process {process.pid} ended without a word" if status == "running" else "why"
    assert state(flow_run_id) == (shown, message)


def test_what_goes_on_is_left_alone(home: Home, process: subprocess.Popen[bytes]):
    store = RunStore(home)
    store.create_run("goes-on", RunConfig(), {}, os.getpid())
    store.create_run("resumed", RunConfig(), {}, process.pid)
    going, namesake = running("goes-on"), running("resumed", other)
    process.kill()
    process.wait()
    store.reconcile()
    time.sleep(0.01)
    resuming = running("resumed")  # the flow run of the command that resumes it begins before the run does
    close_flow_runs_of_ended_runs(home)
    assert [state(one)[0] for one in (going, namesake, resuming)] == ["RUNNING"] * 3


@contextmanager
def starting(home: Home, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun to start or resume a run; it is not in the record yet."""
    program = (
        "import sys; from pathlib import Path; from storage.home import Home; "
        "from storage.record.run_status import RunLog; "
        f"RunLog(Home(Path({str(home.path)!r})), {name!r}).starting(); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process


def interrupted(store: RunStore, name: str, process: subprocess.Popen[bytes]) -> None:
    store.create_run(name, RunConfig(), {}, process.pid)
    process.kill()
    process.wait()
    store.reconcile()


@pytest.mark.parametrize("name", ["new", "resumed-again"])
def test_flow_run_is_closed_if_its_process_was_killed_while_starting(
    home: Home, process: subprocess.Popen[bytes], name: str
):
    if name != "new":
        interrupted(RunStore(home), name, process)
    of_form = running_by_form(name)
    with starting(home, name) as killed:
        of_command = running(name)
        close_flow_runs_of_ended_runs(home)
        assert [state(one)[0] for one in (of_form, of_command)] == ["RUNNING"] * 2
        killed.kill()
    later = running_by_form(name)  # before its process has begun the log
    close_flow_runs_of_ended_runs(home)
    assert [state(one) for one in (of_form, of_command)] == [("CRASHED", "its process was killed")] * 2
    assert state(later)[0] == "RUNNING"


def test_flow_run_stays_open_while_one_of_two_processes_that_start_the_run_is_alive(home: Home):
    with starting(home, "both"):
        flow_run_id = running("both")
        with starting(home, "both") as killed:
            killed.kill()
        close_flow_runs_of_ended_runs(home)
        assert state(flow_run_id)[0] == "RUNNING"
    close_flow_runs_of_ended_runs(home)
    assert state(flow_run_id) == ("CRASHED", "its process was killed")


def test_flow_run_of_a_new_run_stays_open_while_another_process_starts_one_of_this_name(home: Home):
    store, left = RunStore(home), running("new-twice")  # its run was deleted
    with RunLog(home, "new-twice").of_start():
        with starting(home, "new-twice"):
            close_earlier_flow_runs(store, "new-twice")
            assert state(left)[0] == "RUNNING"
        close_earlier_flow_runs(store, "new-twice")
        assert state(left) == ("CRASHED", "its process was killed")


def test_flow_run_stays_open_if_a_process_starts_the_run_after_prefect_has_answered(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    flow_run_id, read = running("meanwhile"), SyncPrefectClient.read_flow_runs
    with starting(home, "meanwhile") as killed:
        killed.kill()
    with ExitStack() as living:

        def answer(client: SyncPrefectClient, **filters: Any) -> list[FlowRun]:
            found = read(client, **filters)
            living.enter_context(starting(home, "meanwhile"))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(SyncPrefectClient, "read_flow_runs", answer)
            close_flow_runs_of_ended_runs(home)
        assert state(flow_run_id)[0] == "RUNNING"


def test_flow_run_of_a_living_run_stays_open_if_a_second_process_was_killed_while_starting(home: Home):
    RunStore(home).create_run("twice", RunConfig(), {}, os.getpid())
    flow_run_id = running("twice")
    with starting(home, "twice") as killed:
        killed.kill()
    close_flow_runs_of_ended_runs(home)
    assert state(flow_run_id)[0] == "RUNNING"


def test_resume_closes_the_flow_run_of_a_resume_that_was_killed_while_starting(
    home: Home, process: subprocess.Popen[bytes]
):
    store = RunStore(home)
    interrupted(store, "resumed-twice", process)
    of_form = running_by_form("resumed-twice")
    with starting(home, "resumed-twice") as killed:
        of_command = running("resumed-twice")
        killed.kill()
    by_form = running_by_form("resumed-twice")
    with RunLog(home, "resumed-twice").of_start():
        later = running("resumed-twice")
        close_flow_runs_of_ended_runs(home)
        found = [state(one)[0] for one in (of_form, of_command)]
        assert found == ["RUNNING"] * 2, "one that starts last is alive"
        close_earlier_flow_runs(store, "resumed-twice")
    assert [state(one) for one in (of_form, of_command)] == [("CRASHED", "its process was killed")] * 2
    assert [state(one)[0] for one in (by_form, later)] == ["RUNNING"] * 2


@pytest.mark.parametrize("own", [True, False])
def test_flow_run_that_is_retried_stays_open(
    home: Home, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, own: bool
):
    name = f"retried-{own}"
    flow_run_id = running(name)
    interrupted(RunStore(home), name, process)
    time.sleep(0.01)
    if own:
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(flow_run_id))  # as its process has it
    else:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run_id, Running(), force=True)
    close_flow_runs_of_ended_runs(home)
    assert state(flow_run_id)[0] == "RUNNING"


def test_the_guard_tells_a_server_that_lives(
    prefect_server: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    url = get_current_settings().api.url
    assert url is not None
    monkeypatch.setenv("PREFECT_API_URL", url)
    flow_run_id = running("r")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(flow_run_id))  # as a form's process has it
    run(Home(tmp_path_factory.mktemp("guarded")), "out of memory")
    assert state(flow_run_id)[0] == "CRASHED"
