"""Flow runs whose process is gone: they get their run's recorded state in Prefect.

A process that is killed, or whose end takes too long, tells Prefect nothing: its flow run would stay Running
for ever. So our flows' hook `note_process` names the process in each flow run.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

import httpx

from storage.clock import process_is_alive
from storage.errors import StorageError
from storage.home import Home
from storage.record.run_status import Process, this_process
from storage.record.run_store import RunStore

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import DeploymentFilter
    from prefect.client.schemas.objects import FlowRun, State

PROCESS = "spotlight.process"
"""The label of a flow run that names its process; `infrastructure_pid` is for Prefect's own workers."""

HOME = "spotlight.home"
"""The label that names a flow run's home, because homes may share a server."""

_KILLED = "its process was killed"

_log = logging.getLogger(__name__)


def note_process(flow: Flow, flow_run: FlowRun, state: State) -> None:
    """Name this process in its flow run as soon as that runs; a hook of our flows.

    Args: those that Prefect passes to a hook.
    """
    from prefect.client.orchestration import get_client

    # Without its name, Cancel in the Prefect UI and the end of a killed process go unseen.
    with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
        attempt = client.read_flow_run(flow_run.id).run_count
        process, home = json.dumps([*this_process(), attempt]), str(Home.from_environment().path)
        client.update_flow_run_labels(flow_run.id, {PROCESS: process, HOME: home})


def process_of(flow_run: FlowRun) -> Process | None:
    """Return the process that a flow run names; None before it runs, or if it is not ours."""
    try:
        host, pid, began_s, attempt = json.loads(str(flow_run.labels[PROCESS]))
    except (KeyError, ValueError, TypeError):
        return None
    # A rerun flow run names its last process until the next one runs.
    return (host, pid, began_s) if attempt == flow_run.run_count else None


def close_flow_runs_of_ended_processes(home: Home) -> None:
    """Give flow runs whose process is gone the state of their run; those without a run have crashed.

    Flow runs of other homes are left alone: their processes may be hidden from here, as in a container. If
    the server or the record cannot be read, the next command tries again.
    """
    from prefect import states
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    made = {"cancelled": states.Cancelled, "failed": states.Failed, "finished": states.Completed}
    store, here = RunStore(home), socket.gethostname()
    try:
        with get_client(sync_client=True) as client:
            begun = [(one, process_of(one)) for one in _unfinished(client, "RUNNING", "CANCELLING")]
            left = [
                (flow_run, process)
                for flow_run, process in begun
                if process and not (process[0] == here and process_is_alive(*process[1:]))
            ]
            # Read afterwards: a process's record and its reports to Prefect are final only once it is gone.
            store.reconcile()
            rows = {row.run_id: row for row in store.runs()}
            for flow_run, process in left:
                row = rows.get(flow_run.name)
                if row is not None and (row.host, row.pid, row.process_started_at) != process:
                    row = None  # another process has resumed the run since, or this one had not begun to
                is_taken_over = row is not None and row.status == "interrupted"
                is_ours = row is not None or flow_run.labels.get(HOME) == str(home.path)
                if not (is_ours if process[0] == here else is_taken_over):
                    continue
                last = client.read_flow_run(flow_run.id)
                if process_of(last) != process or (last.state is not None and last.state.is_final()):
                    continue
                state = states.Crashed(message=_KILLED)
                if row is not None:
                    message = row.error or f"the run is {row.status}"
                    state = made.get(row.status, states.Crashed)(message=message)
                client.set_flow_run_state(flow_run.id, state, force=True)
    except (httpx.HTTPError, ObjectNotFound, StorageError) as error:
        _log.debug("flow runs whose process is gone stay as they are: %s", error)


def close_flow_runs_of_deployments(deployment_ids: Sequence[UUID]) -> None:
    """Mark the flow runs of these deployments as crashed, when no process serves the deployments yet."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.states import Crashed

    deployed = DeploymentFilter(id=DeploymentFilterId(any_=list(deployment_ids)))
    with get_client(sync_client=True) as client:
        for flow_run in _unfinished(client, "PENDING", "RUNNING", "CANCELLING", deployed=deployed):
            client.set_flow_run_state(flow_run.id, Crashed(message=_KILLED), force=True)


def _unfinished(
    client: SyncPrefectClient, *states: str, deployed: DeploymentFilter | None = None
) -> list[FlowRun]:
    """Return all flow runs in these states, read before closing one moves the rest."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState

    wanted = FlowRunFilter(state=FlowRunFilterState.model_validate({"type": {"any_": list(states)}}))
    found: list[FlowRun] = []
    while page := client.read_flow_runs(  # at most 200 per answer
        flow_run_filter=wanted, deployment_filter=deployed, offset=len(found)
    ):
        found += page
    return found
