"""Cancelling runs: those of the command line, and the last steps of those that a runner has started.

Prefect's runner cancels only flow runs of deployments. A run of the command line watches its own state
instead: when somebody presses Cancel in the Prefect UI, it gets the same SIGTERM that a runner would
send, ends its processes, and is marked Cancelled.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled

from storage.errors import RunCancelledError

_POLL_S = 1.0


@contextmanager
def cancellable(name: str) -> Iterator[None]:
    """While the context lasts, the flow run called `name` can be cancelled from the Prefect UI.

    SIGTERM ends the flow in order and then raises SystemExit(143). Only the main thread gets signals: in
    another one this does nothing.

    Raises:
        RunCancelledError: the run was cancelled in the Prefect UI.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    cancelled: list[UUID] = []
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(name, cancelled, over), name="cancellation", daemon=True)
    # Prefect passes the signal on to this handler once its own clean-up is done.
    before = signal.signal(signal.SIGTERM, _leave)
    watch.start()
    try:
        yield
    except SystemExit as ended:
        if not cancelled:
            raise
        raise RunCancelledError(
            f"run {name!r} was cancelled in the Prefect UI; go on with `spotlight resume {name}`"
        ) from ended
    finally:
        over.set()
        signal.signal(signal.SIGTERM, before)
        _mark_cancelled(cancelled)


@contextmanager
def gone_soon_when_cancelled() -> Iterator[None]:
    """A run that a runner cancels meanwhile ends its process without taking the interpreter apart.

    That takes seconds with the libraries of a run, and the runner waits for it. What was to be handed
    over at the end still is.
    """
    cancelled: list[bool] = []

    def leave() -> None:
        if cancelled:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # as Prefect's engine does once it was told to cancel

    # The last to be called of those that the run registers after it, such as Ray's.
    atexit.register(leave)
    try:
        yield
    except TerminationSignal:
        cancelled.append(True)
        raise
    finally:
        if not cancelled:
            atexit.unregister(leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _watch(name: str, cancelled: list[UUID], over: threading.Event) -> None:
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
            if found:
                cancelled += [run.id for run in found]
                os.kill(os.getpid(), signal.SIGTERM)
                return


def _mark_cancelled(flow_run_ids: list[UUID]) -> None:
    if not flow_run_ids:
        return
    with get_client(sync_client=True) as client:
        # The engine takes any SIGTERM for a crash; the person who cancelled knows better.
        for flow_run_id in flow_run_ids:
            client.set_flow_run_state(flow_run_id, Cancelled(message="cancelled by a person"), force=True)
