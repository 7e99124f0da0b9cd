"""What becomes of a run whose Prefect server went away for good.

The run itself needs no server: its state lies in checkpoints and DuckDB. Only Prefect wants to tell
its server how the flow ended, and hands over its events before it lets the process end, with seconds
of retries for each. Here that gets a limit, and what the run did counts.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

from flows.progress import reporter
from storage.errors import RunNotFoundError, ServerError, SpotlightError
from storage.record.run_store import RunStore

_HAND_OVER_S = 10.0
"""For a server that answers, milliseconds do."""

_LEAST_FREE_BYTES = 2**20
"""With less a server answers "Internal Server Error", and cannot log the reason."""

_leaves_at_once = False


def hand_over() -> None:
    """Let Prefect's background workers hand over what they hold, within a limit.

    Before a local server is ended, as they would wait for it afterwards. What does not make it in
    time is given up: `leave` then does not wait for it either.
    """
    global _leaves_at_once
    module = sys.modules.get("prefect.events.worker")
    if module is None:  # no flow has run
        return
    drain = partial(module.EventsWorker.drain_all, timeout=_HAND_OVER_S)
    _, waiting = _in_a_thread(drain) if _loop_runs() else drain()
    if waiting:
        _leaves_at_once = True


def _loop_runs() -> bool:
    """Whether an event loop runs in this thread, as in a notebook; Prefect returns a coroutine then."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(drain: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(drain).result()


def leave(code: int, at_once: bool = False) -> NoReturn:
    """End this process; all of the run's own must be closed.

    Args:
        code: its exit code.
        at_once: do not take the interpreter apart, which takes seconds with the libraries of a run, while
            the person who has stopped it waits. What libraries do at the exit, such as Ray, is still done.
    """
    if _leaves_at_once or at_once:
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends already
            signal.signal(number, signal.SIG_IGN)
        if not _leaves_at_once:  # Prefect's hook has no limit
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def result_without_server(store: RunStore, run_id: str, error: Exception) -> dict[str, Any]:
    """The result of a run that Prefect could not bring to its end.

    Args:
        store: where the run is recorded.
        run_id: the run.
        error: what Prefect's client raised.

    Raises:
        SpotlightError: it ended the run first, such as a full disk, which ends the server's work too.
        ServerError: the run has no result; says how to go on.
    """
    home = store.home.path
    full = shutil.disk_usage(home).free < _LEAST_FREE_BYTES
    why = f"no space is left for {home}: free disk space" if full else error
    gone = f"the Prefect server went away and did not come back ({why})"
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
        f"go on with `spotlight resume {run_id}`"
    ) from error
