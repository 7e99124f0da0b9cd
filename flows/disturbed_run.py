"""A run of `spotlight train` under faults, resumed by `spotlight resume` whenever it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.progress import reporter
from flows.server.children import launch
from flows.server.note import living_server
from storage.config.runtime import WORKER_IN_URL
from storage.errors import RuntimeFailure
from storage.home import HOME_VARIABLE, PURPOSE_VARIABLE, Home
from storage.processes import python_command
from storage.record.run_store import RunStore
from tasks.chaos.faults import Done, Fault, FaultInjector, SimulatedNotices

if TYPE_CHECKING:  # imports Ray
    from tasks.chaos.replayed_trace import TraceReplay

HANG_S = 300.0
"""Seconds without a new line in its history after which a run is hung."""

_MOST_OWN_FAILURES = 2
"""Times that a run may end without being killed before it is no longer resumed."""


@dataclass(frozen=True)
class DisturbedRun:
    """The outcome of a run under faults.

    Attributes:
        left: faults that found no target before it ended; their times count from its end.
        hung: True if it wrote nothing for `HANG_S` and was ended.
    """

    done: tuple[Done, ...]
    left: tuple[Fault, ...]
    restarts: int
    hung: bool
    wall_s: float


def disturb(
    home: Home,
    run_id: str,
    arguments: Sequence[str],
    faults: Sequence[Fault],
    replay: TraceReplay | None = None,
) -> DisturbedRun:
    """Train a run under faults, which are timed from its start.

    Args:
        arguments: those of `spotlight train` for it.
        replay: a trace whose instances the run joins through its arguments; starts with its first phase.

    Raises:
        RuntimeFailure: the faults could not be injected, or the run did not begin.
    """
    began, restarts, hung = time.monotonic(), 0, False

    def server_pid() -> int | None:
        note = living_server(home)
        return None if note is None else note.pid

    with (
        SimulatedNotices(WORKER_IN_URL) as notices,
        FaultInjector(home.history(run_id), faults, notices, server_pid) as injector,
    ):
        asked = ["--set", f"runtime.notices=gcp@{notices.url}"]
        train = ("train", "--run-id", run_id, *arguments, *(asked if replay is None else ()))
        child = start(home, *train)
        while True:
            code = _wait(child, injector, replay)
            if code is None:
                hung = True
                break
            killed = injector.done_of("coordinator_restart") + injector.done_of("agent_death")
            if code == 0 or restarts >= _MOST_OWN_FAILURES + killed:
                break
            restarts += 1
            injector.last_line_s = time.monotonic()
            if _has_begun(home, run_id):
                reporter().note(f"run {run_id} ended with exit code {code}; resuming it")
                child = start(home, "resume", run_id)
            else:
                reporter().note(f"run {run_id} did not begin (exit code {code}); starting it again")
                child = start(home, *train)
    if injector.trouble is not None:
        raise RuntimeFailure(f"the faults could not be injected: {injector.trouble}") from injector.trouble
    if not _has_begun(home, run_id):
        raise RuntimeFailure(f"run {run_id} did not begin, {restarts + 1} times; see {home.logs}")
    wall_s = time.monotonic() - began
    return DisturbedRun(tuple(injector.done), injector.undone(wall_s), restarts, hung, wall_s)


def start(home: Home, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of ours, which ends with this process; its output goes to our standard error."""
    environment = os.environ | {HOME_VARIABLE: str(home.path), PURPOSE_VARIABLE: "chaos"}
    return launch(python_command("-m", "flows.cli.command_line", *arguments), environment, sys.stderr)


def _has_begun(home: Home, run_id: str) -> bool:
    return any(row.run_id == run_id for row in RunStore(home).runs())


def _wait(child: subprocess.Popen[bytes], injector: FaultInjector, replay: TraceReplay | None) -> int | None:
    """Wait for a run and return its exit code; None if it hung and was ended."""
    while True:
        try:
            return child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            if replay is not None and injector.processes.under_way:
                replay.start()
            if time.monotonic() - injector.last_line_s > HANG_S:
                child.kill()
                child.wait()
                return None
