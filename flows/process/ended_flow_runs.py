"""Flow runs whose process is gone: Prefect is given the state that their runs have in the record."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import httpx

from storage.errors import StorageError
from storage.home import Home
from storage.record.run_folder import RunFolder
from storage.record.run_status import read_activity, this_process
from storage.record.run_store import RunRow, RunStore, check_resumable

if TYPE_CHECKING:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import FlowRun

_FLOWS_OF_RUNS = ["post-train", "reproduce"]
"""Flows whose flow run bears the name of its run."""

_KILLED = "its process was killed"

_log = logging.getLogger(__name__)


def close_flow_runs_of_ended_runs(home: Home) -> None:
    """Give flow runs of ended runs the state of the run, if their process could not do so.

    A process that is killed, or whose end takes too long, tells Prefect nothing: its flow run would stay
    Running for ever. If the server or the record cannot be read, the next command tries again.
    """
    unrecorded = [run_id for run_id in home.run_ids() if not RunFolder(home.run(run_id)).exists]
    try:
        ended = _ended_runs(home)
    except StorageError:
        return
    if not ended and not unrecorded:
        return
    from prefect import states
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.exceptions import ObjectNotFound
    from prefect.runtime import flow_run as own

    made = {"cancelled": states.Cancelled, "failed": states.Failed, "finished": states.Completed}
    of_runs = FlowFilter(name=FlowFilterName(any_=_FLOWS_OF_RUNS))
    try:
        with get_client(sync_client=True) as client:
            unfinished: list[FlowRun] = []  # all, before the first of them is finished and moves the rest
            while page := client.read_flow_runs(  # it answers with at most 200
                flow_filter=of_runs, flow_run_filter=_unfinished(), offset=len(unfinished)
            ):
                unfinished += page
            for flow_run in unfinished:
                row = ended.get(flow_run.name)
                began_at = _began_at(flow_run)
                if began_at is None or str(flow_run.id) == own.get_id():
                    continue
                if row is not None and began_at < (row.ended_at or 0.0):
                    message = row.error or f"the run is {row.status}"
                    state = made.get(row.status, states.Crashed)(message=message)
                elif (row is not None or flow_run.name in unrecorded) and (
                    (killed_at := read_activity(home, flow_run.name, 0).killed_start_at())
                    and (began_at < killed_at or flow_run.deployment_id is None)  # commands log first
                ):
                    state = states.Crashed(message=_KILLED)
                else:  # it is going on, or is resuming the run right now
                    continue
                client.set_flow_run_state(flow_run.id, state, force=True)
    except (httpx.HTTPError, ObjectNotFound) as error:
        _log.debug("flow runs of runs that are over stay as they are: %s", error)


def close_earlier_flow_runs(store: RunStore, run_id: str) -> None:
    """Close the flow runs that killed processes left of a run on which this process is about to work.

    Raises:
        ConfigurationError: another process has resumed the run meanwhile; its flow run is left alone.
    """
    store.reconcile()
    known = store.run(run_id) if store.folder(run_id).exists else None
    if known is not None and known.status == "running":
        check_resumable(known, os.getpid())
    activity, own = read_activity(store.home, run_id, 0), this_process()
    killed_at = activity.killed_start_at(besides=own)
    is_alone = killed_at > 0 or not activity.starts.keys() - {own}
    known_end = 0.0 if known is None else known.ended_at or 0.0
    ended_at = None if known is None and is_alone else max(known_end, killed_at)
    commands_ended_at = activity.starts.get(own, 0.0) if killed_at else 0.0
    close_orphaned_flow_runs([run_id], ended_at=ended_at, commands_ended_at=commands_ended_at)


def close_orphaned_flow_runs(
    run_ids: Sequence[str] = (),
    deployment_ids: Sequence[UUID] = (),
    ended_at: float | None = None,
    commands_ended_at: float = 0.0,
) -> None:
    """Mark flow runs of these names, or of these deployments, as crashed: their processes are gone.

    Otherwise they would run for ever, and one that was being cancelled would cancel its
    successor of the same name. The current flow run may already have the name: it is left alone.

    Args:
        ended_at: end of the last process known to be gone (Unix seconds), after which another process may
            have begun to resume the run: its flow run is left alone, too. None if no other process can be at
            work.
        commands_ended_at: a later limit for flow runs without a deployment, which commands start.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.runtime import flow_run
    from prefect.states import Crashed

    deployed = DeploymentFilter(id=DeploymentFilterId(any_=list(deployment_ids))) if deployment_ids else None
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=_unfinished(run_ids), deployment_filter=deployed)
        for orphan in found:
            began_at = _began_at(orphan)
            until = ended_at
            if ended_at is not None and orphan.deployment_id is None:
                until = max(ended_at, commands_ended_at)
            is_later = until is not None and began_at is not None and began_at >= until
            if str(orphan.id) != flow_run.get_id() and not is_later:
                client.set_flow_run_state(orphan.id, Crashed(message=_KILLED), force=True)


def _began_at(flow_run: FlowRun) -> float | None:
    """Return the start of a flow run (Unix seconds): of its last attempt, unless that is being cancelled."""
    state, began = flow_run.state, flow_run.start_time
    if state is not None and (began is None or not state.is_cancelling()):
        began = state.timestamp
    return None if began is None else began.timestamp()


def _ended_runs(home: Home) -> Mapping[str, RunRow]:
    """Return ended runs whose process is gone: no other process changes their state in Prefect."""
    if not home.run_ids():
        return {}
    store = RunStore(home)
    store.reconcile()
    here = socket.gethostname()
    return {
        row.run_id: row
        for row in store.runs()
        if row.status != "running"
        and (not row.may_be_alive or (row.host != here and row.status == "interrupted"))
    }


def _unfinished(run_ids: Sequence[str] = ()) -> FlowRunFilter:
    """Return a filter for the unfinished flow runs of these names (of any name, if empty)."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState

    return FlowRunFilter(
        name=FlowRunFilterName(any_=list(run_ids)) if run_ids else None,
        state=FlowRunFilterState.model_validate({"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}),
    )
