"""Ends of runs as Prefect sees them: by Ctrl-C, SIGTERM, its UI, its runner, and with a lost cluster.

Prefect takes every end by a signal for a crash: it marks the flow run and its task runs Crashed, and prints a
red line for each. Here they are Cancelled, as the run is in the record.

Prefect's runner cancels only flow runs of deployments. A run of the command line watches its own state.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import httpx
import prefect.flow_engine
import prefect.task_engine
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Crashed

from flows import ENDED_BY_SIGNAL
from flows.process.ended_flow_runs import process_of
from flows.process.stopping import Stopped, stop_this_process
from storage.errors import ClusterLostError, RunCancelledError
from storage.record.run_status import this_process

_POLL_S = 1.0
_CANCELLED = "cancelled in the Prefect UI"

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def cancellable(name: str, then: str) -> Iterator[None]:
    """Let this process's flow run called `name` be cancelled from the Prefect UI while the context lasts.

    Cancel sends this process the SIGTERM that a runner would. Only the main thread gets signals: in another
    thread this does nothing.

    Args:
        then: end of the error's message, such as what is kept.

    Raises:
        RunCancelledError: the flow run was cancelled in the Prefect UI.
        Stopped: it ended by a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(name, over), name="cancellation", daemon=True)
    try:
        watch.start()
        # Prefect's own handler of SIGTERM would raise again in the middle of the shutdown.
        with ends_are_cancellations(), patch.object(prefect.flow_engine, "capture_sigterm", nullcontext):
            yield
    except Stopped as stopped:
        if str(stopped) != _CANCELLED:
            raise
        raise RunCancelledError(f"{name!r} was {_CANCELLED}; {then}") from stopped
    finally:
        over.set()


@contextmanager
def ends_are_cancellations() -> Iterator[None]:
    """Mark flow and task runs that a signal ends meanwhile as Cancelled, without a line in Prefect's log.

    Prefect has no setting for this.
    """
    of_flow = prefect.flow_engine.exception_to_crashed_state
    of_task = prefect.task_engine.exception_to_crashed_state_sync

    async def flow_state(error: BaseException, *arguments: Any) -> State[Any]:
        return _cancelled_by(error) or await of_flow(error, *arguments)

    def task_state(error: BaseException, *arguments: Any) -> State[Any]:
        return _cancelled_by(error) or of_task(error, *arguments)

    with (
        patch.object(prefect.flow_engine, "exception_to_crashed_state", flow_state),
        patch.object(prefect.task_engine, "exception_to_crashed_state_sync", task_state),
    ):
        yield


@contextmanager
def gone_soon_when_cancelled() -> Iterator[None]:
    """Let a run that a runner cancels meanwhile end its process without finalizing the interpreter.

    That takes seconds with the libraries of a run, and the runner waits for it. Data to be handed
    over at the end still is.
    """
    cancelled: list[bool] = []

    def leave() -> None:
        if cancelled:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # as Prefect's engine does when told to cancel

    # Called after those that the run registers later, such as Ray's.
    atexit.register(leave)
    try:
        with ends_are_cancellations():
            yield
    except TerminationSignal:
        cancelled.append(True)
        raise
    finally:
        if not cancelled:
            atexit.unregister(leave)


def _cancelled_by(error: BaseException) -> State[Any] | None:
    """Return the state of a run ended by this error; None if it was not a signal."""
    # The task runner gives up a task whose thread runs when its flow ends: a `CancelledError`.
    is_signal = isinstance(error, (KeyboardInterrupt, TerminationSignal, CancelledError))
    return Cancelled(message=ENDED_BY_SIGNAL) if is_signal else None


def _watch(name: str, over: threading.Event) -> None:
    wanted = FlowRunFilter(
        name=FlowRunFilterName(any_=[name]),
        state=FlowRunFilterState.model_validate({"type": {"any_": ["CANCELLING"]}}),
    )
    with get_client(sync_client=True) as client:
        while not over.wait(_POLL_S):
            try:
                found = client.read_flow_runs(flow_run_filter=wanted)
            except httpx.HTTPError:
                continue  # a server that restarts is asked again
            if this_process() in map(process_of, found):
                stop_this_process(_CANCELLED)
                return


def crashes_with_its_cluster(do: Callable[P, R]) -> Callable[P, R]:
    """Wrap a flow's function: its flow run is Crashed if the cluster was lost; a caller gets the error."""

    @wraps(do)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return do(*args, **kwargs)
        except ClusterLostError as error:
            crashed: Any = Crashed(message=str(error), data=error)
            return crashed

    # Prefect would look for the names of these types in this file.
    vars(done)["__signature__"] = inspect.signature(do, eval_str=True)
    return done
