"""How a cancelled run's process ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prefect.flow_engine
import prefect.task_engine
import pytest
from prefect.exceptions import TerminationSignal

import flows.post_train
from flows.process import cancellation
from flows.process.cancellation import cancellable, ends_are_cancellations
from flows.process.stopping import Stopped
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import StorageError
from storage.home import Home
from storage.record.run_store import RunStore
from tasks.iteration.session import CANCELLED_FLUSH_S, Session, status_after

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import atexit, sys
from prefect.exceptions import TerminationSignal
from flows.process.cancellation import gone_soon_when_cancelled

class Library:
    def __del__(self):
        print("taken apart", flush=True)

library = Library()
try:
    with gone_soon_when_cancelled():
        atexit.register(print, "handed over")
        if {cancelled}:
            raise TerminationSignal(signal=15)
except TerminationSignal:
    print("cancelled")
sys.exit({code})
"""


@pytest.mark.parametrize(
    ("cancelled", "code", "said"),
    [(True, 0, ["cancelled", "handed over"]), (False, 3, ["handed over", "taken apart"])],
)
def test_only_a_cancelled_run_ends_without_taking_its_libraries_apart(
    cancelled: bool, code: int, said: list[str]
):
    command = [sys.executable, "-c", SCRIPT.format(cancelled=cancelled, code=code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (code, said), done.stderr


def states_of(error: BaseException) -> set[str]:
    """What Prefect makes of a task run and of a flow run that this ends."""
    of_flow = asyncio.run(prefect.flow_engine.exception_to_crashed_state(error))
    return {of_flow.type.value, prefect.task_engine.exception_to_crashed_state_sync(error).type.value}


@pytest.mark.parametrize(
    "error",
    [
        Stopped(signal.SIGINT, "stopped by Ctrl-C"),
        TerminationSignal(signal=15),
        asyncio.CancelledError("by the task runner"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_prefect_calls_what_a_signal_ends_cancelled(error: BaseException):
    assert states_of(error) == {"CRASHED"}
    with ends_are_cancellations():
        assert states_of(error) == {"CANCELLED"}
        assert states_of(OSError("no disk")) == {"CRASHED"}
    assert states_of(error) == {"CRASHED"}


def test_prefect_keeps_its_hands_off_the_signals(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cancellation, "_watch", lambda name, over: None)
    of_prefect = signal.getsignal(signal.SIGTERM)
    with cancellable("r", "start it again"), prefect.flow_engine.capture_sigterm():
        assert signal.getsignal(signal.SIGTERM) is of_prefect
    with prefect.flow_engine.capture_sigterm():
        assert signal.getsignal(signal.SIGTERM) is not of_prefect


@pytest.mark.parametrize("name", ["prefect.flow_runs", "prefect.task_runs"])
def test_prefect_prints_no_error_of_a_cancelled_run(name: str):
    kept: list[str] = []
    with ends_are_cancellations():
        state = prefect.task_engine.exception_to_crashed_state_sync(TerminationSignal(signal=15))
    logger = logging.getLogger(name)
    for said in (f"Crash detected! {state.message}", f"Finished in state {state}", "Crash detected! Another"):
        if logger.filter(logging.makeLogRecord({"msg": said})):
            kept.append(said)
    assert kept == ["Crash detected! Another"]


@pytest.mark.parametrize(
    ("after", "ended", "status", "reason"),
    [
        (ValueError("Task run is not set"), TerminationSignal, "cancelled", "cancelled in the Prefect UI"),
        (StorageError("no space is left"), StorageError, "failed", "StorageError: no space is left"),
    ],
    ids=["an error of Prefect", "an error of ours"],
)
def test_a_run_ends_by_a_signal_unless_an_error_of_ours_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: Exception, ended: Any, status: str, reason: str
):
    def hide_signal(*_: object) -> Session:
        try:
            raise TerminationSignal(signal=15)
        finally:
            raise after

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(flows.post_train, "open_session", hide_signal)
    # Outside of a flow run, Prefect would start a server for its artifact.
    monkeypatch.setattr(flows.post_train, "show_links", lambda *_: None)
    with pytest.raises(ended):
        flows.post_train.train_run(load_config("smoke", [], {}), "hidden")
    row = RunStore(Home(tmp_path)).run("hidden")
    assert row.status == status and (row.error or "").startswith(reason)
    assert status_after(ValueError("Task run is not set")) == "failed", "without a signal"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The session of a run without devices."""
    nothing: Any = None
    store = RunStore(Home(tmp_path).ensure())
    readers: Any = SimpleNamespace(
        ends=[], finish=lambda status, wait_s: readers.ends.append((status, wait_s))
    )
    opened = ExitStack()
    opened.callback(lambda: readers.ends.append("devices"))
    return Session("r", RunConfig(), nothing, store, nothing, readers, opened)


def test_a_phase_is_announced_before_it_begins(session: Session):
    done: list[str] = []
    session.on_phase = done.append
    with session.timed("rollout"):
        done.append("samples")
    with session.timed("explore_wait", announced=False):
        done.append("waited")
    assert done == ["rollout", "samples", "waited"]
    assert list(session.seconds) == ["rollout", "explore_wait"]
    assert all(0 <= seconds < 60 for seconds in session.seconds.values())


def test_a_task_beside_the_one_that_was_stopped_is_cancelled_too(session: Session):
    """Its devices are gone when the run is cancelled, which is no failure of the task."""
    with pytest.raises(OSError), session.timed("explore"):
        raise OSError("a failure")
    session.__exit__(Stopped, Stopped(signal.SIGTERM, "stopped"))
    readers: Any = session.readers
    assert readers.ends == ["devices", ("cancelled", CANCELLED_FLUSH_S)], "in this order"
    with pytest.raises(TerminationSignal), session.timed("explore"):
        raise OSError("the worker is gone")
