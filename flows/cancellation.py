"""Cancelling a run that was started from the command line.

Prefect's runner cancels only flow runs of deployments. A run of ours in this process watches its
own state instead: when somebody presses Cancel in the Prefect UI, it gets the same SIGTERM that a
runner would send, ends its processes, and is marked Cancelled.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled

_POLL_S = 2.0


@contextmanager
def cancellable(name: str) -> Iterator[None]:
    """While the context lasts, the flow run called `name` can be cancelled from the Prefect UI.

    SIGTERM, from there or from anybody, ends the flow in order and then raises SystemExit(143).
    Only for the main thread, which gets the signals.
    """
    asked, over = threading.Event(), threading.Event()
    watch = threading.Thread(target=_watch, args=(name, asked, over), name="cancellation", daemon=True)
    # Prefect passes the signal on to this handler once its own clean-up is done.
    before = signal.signal(signal.SIGTERM, _leave)
    watch.start()
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGTERM, before)
        if asked.is_set():
            _mark_cancelled(name)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _watch(name: str, asked: threading.Event, over: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not over.wait(_POLL_S):
            try:
                cancelling = _runs(client, name, "CANCELLING")
            except httpx.HTTPError:
                continue  # a server that restarts is asked again
            if cancelling:
                asked.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return


def _mark_cancelled(name: str) -> None:
    with get_client(sync_client=True) as client:
        # The engine takes any SIGTERM for a crash; the person who cancelled knows better.
        for run in _runs(client, name, "CANCELLING", "CRASHED"):
            client.set_flow_run_state(run.id, Cancelled(message="cancelled by a person"), force=True)


def _runs(client: SyncPrefectClient, name: str, *states: str) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            name=FlowRunFilterName(any_=[name]),
            state=FlowRunFilterState.model_validate({"type": {"any_": list(states)}}),
        )
    )
