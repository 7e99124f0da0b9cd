"""The end of a run whose Prefect server went away for good.

The run itself needs no server: its state is in its folder. But Prefect reports how the flow ended to its
server, and hands over its events before the process may end, with seconds of retries for each. Here that is
limited, and the run's own outcome counts.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from flows.progress import reporter
from storage.errors import RunNotFoundError, ServerError, SpotlightError
from storage.processes import ENDING_SIGNALS
from storage.record.run_store import RunStore

CHECK_THE_SERVER = "check PREFECT_API_URL and PREFECT_API_AUTH_STRING"
"""Advice to a person whose Prefect server answers, but refuses requests."""

_HAND_OVER_S = 10.0
"""Seconds for the hand-over; a server that answers takes milliseconds."""

_LEAST_FREE_BYTES = 2**20
"""Free bytes below which a server answers "Internal Server Error", and cannot log the reason."""

_gave_up = False
"""True once data was not handed over in time: `leave` does not wait for it either."""


def hand_over() -> None:
    """Let Prefect's background workers hand over their data, within a limit.

    Call it before a local server ends, as they would wait for it afterwards.
    """
    global _gave_up
    module = sys.modules.get("prefect.events.worker")
    if module is None:  # no flow has run
        return
    # In a thread that runs no event loop, as a notebook's does: there Prefect would return a coroutine.
    with ThreadPoolExecutor(1) as thread:
        _, waiting = thread.submit(module.EventsWorker.drain_all, timeout=_HAND_OVER_S).result()
    _gave_up = _gave_up or bool(waiting)


def leave(code: int, at_once: bool = False) -> NoReturn:
    """End this process; everything that the run opened must be closed.

    Args:
        at_once: True to skip the interpreter's finalization, which takes seconds with the libraries of a run
            while a person waits. Exit handlers of libraries, such as Ray's, still run.
    """
    if _gave_up or at_once:
        for number in ENDING_SIGNALS:  # it is already ending
            signal.signal(number, signal.SIG_IGN)
        if not _gave_up:  # Prefect's hook has no limit
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def result_without_server(store: RunStore, run_id: str, error: Exception) -> dict[str, Any]:
    """Return the result of a run that Prefect could not complete.

    Raises:
        SpotlightError: another error ended the run first, such as a full disk, which also stops the server.
        ServerError: the run has no result; the message tells how to resume it.
    """
    from httpx import HTTPStatusError

    home = store.home.path
    full = shutil.disk_usage(home).free < _LEAST_FREE_BYTES
    why = f"no space is left for {home}: free disk space" if full else error
    gone = f"the Prefect server went away and did not come back ({why})"
    if isinstance(error, HTTPStatusError) and error.response.status_code in (401, 403):
        gone = f"the Prefect server refused a request ({why}; {CHECK_THE_SERVER})"
    try:
        row = store.run(run_id)
    except RunNotFoundError:
        raise ServerError(f"{gone} before run {run_id!r} began; start it again") from error
    if row.status == "finished":
        reporter().note(f"warning: {gone}; run {run_id} is complete all the same, only Prefect does not know")
        return row.summary
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, SpotlightError):
            raise before
        before = before.__cause__ or before.__context__
    raise ServerError(
        f"{gone}; run {run_id!r} is {row.status} after iteration {row.last_iteration or 0}: "
        f"continue with `spotlight resume {run_id}`"
    ) from error
