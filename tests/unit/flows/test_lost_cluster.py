"""An error of the runtime names the run, and what of the cluster has ended."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import flows.progress
from flows.post_train import _finish, _note_troubles
from flows.process.run_guard import RunGuard
from flows.process.stopping import Stopped
from flows.progress import Reporter
from gpu_runtime.cluster.slots import FailedStart
from storage import clock
from storage.errors import ClusterLostError, RewardError, RuntimeFailure, StorageError
from storage.record.records import Collected, DeviceEvent
from tasks.iteration.session import Session, StormWatch, status_after
from tests.read_runs import gone_process


@contextmanager
def following(needed: Mapping[str, int], address: str = "") -> Iterator[None]:
    """The part of a run in which its guard follows these processes."""
    guard = RunGuard(Path("no home"), "r", address)
    try:
        with guard.following(needed):
            yield
    finally:
        guard.close()


def test_processes_that_have_ended_are_named():
    child = subprocess.Popen(["sleep", "60"])
    needed = {"Ray's raylet": child.pid, "Ray's GCS server": os.getpid()}
    with pytest.raises(ClusterLostError) as raised, following(needed):
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its parent has not looked yet
        raise RuntimeFailure("the trainer's process is gone")
    child.wait()
    assert str(raised.value) == (
        "the trainer's process is gone: Ray's raylet ended; continue with `spotlight resume r`"
    )
    assert status_after(raised.value) == "interrupted"


def test_a_process_that_was_gone_before_counts():
    needed = {"Ray's raylet": gone_process()}
    with pytest.raises(ClusterLostError, match="Ray's raylet ended"), following(needed):
        raise RuntimeFailure("no device is left")


@pytest.mark.parametrize("address", ["", "auto"])
def test_another_failure_of_the_runtime_says_how_to_go_on(address: str):
    needed = {"Ray's raylet": os.getpid()}
    with pytest.raises(RuntimeFailure) as raised, following(needed, address):
        raise RuntimeFailure("no device is left")
    assert str(raised.value) == "no device is left; continue with `spotlight resume r`"
    assert status_after(raised.value) == "failed"


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RewardError, match=r"^no scorer$"), following({}):
        raise RewardError("no scorer")


def test_a_joined_head_that_does_not_answer_is_named_with_how_to_go_on_elsewhere():
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(RuntimeFailure) as alive, following({}, address):
            raise RuntimeFailure("no device is left")
    assert str(alive.value) == "no device is left; continue with `spotlight resume r`"
    with pytest.raises(ClusterLostError) as lost, following({}, address):
        raise RuntimeFailure("no device is left")
    assert f"the head of the Ray cluster at {address} no longer answers" in str(lost.value)
    assert "`spotlight resume r --ray-address HOST:PORT`" in str(lost.value)
    assert "SPOTLIGHT_CHECKPOINT__MIRROR" in str(lost.value) and "--take-over" in str(lost.value)
    assert status_after(lost.value) == "interrupted"


def test_each_is_told_once(monkeypatch: pytest.MonkeyPatch):
    said = io.StringIO()
    monkeypatch.setattr(flows.progress, "_reporter", Reporter(Console(file=said, width=300)))
    ahead_s = 0.0
    monkeypatch.setattr(clock, "_process_clock", clock.Clock(lambda: 1.7e9 + ahead_s, lambda: 5.0))
    events: list[tuple[str, str]] = []
    lost_standbys = ["standby-0 died: no memory"]
    runtime = SimpleNamespace(lost_workers=["spot-1"], failed_starts=[], lost_standbys=lost_standbys)
    store = SimpleNamespace(add_event=lambda run_id, kind, message: events.append((kind, message)))
    session: Any = SimpleNamespace(
        run_id="r", runtime=runtime, store=store, storm=StormWatch(), note_devices=lambda: None,
        noted=Counter(),
    )  # fmt: skip
    runtime.failed_starts.append(FailedStart("spot-0.2", "no model folder /x", 3, 2))
    ahead_s = -3600.0
    _note_troubles(session, Collected())
    assert [kind for kind, _ in events] == ["worker_lost", "failed_start", "standby_lost", "clock_jump"]
    start = "spot-0 did not start, 3 times in a row: no model folder /x; it will be retried in 2 phases"
    assert events[1][1] == start
    assert events[2][1] == "standby-0 died: no memory; a new one is being started"
    assert "moved by -3600 s" in events[3][1]
    assert said.getvalue().splitlines() == [f"worker {start}", events[3][1]]
    _note_troubles(session, Collected())
    assert len(events) == 4
    runtime.failed_starts.append(FailedStart("spot-0.3", "no model folder /x", 4, 4))
    _note_troubles(session, Collected())
    assert [kind for kind, _ in events[4:]] == ["failed_start"]


def test_a_preemption_storm_is_told_once():
    def preempted(at: float, *workers: str, kind: Any = "lost") -> list[DeviceEvent]:
        return [DeviceEvent(worker, "spot", kind, at) for worker in workers]

    storm = StormWatch()
    assert storm.after(preempted(0.0, "spot-0")) == storm.after(preempted(0.0, "spot-1")) == ""
    assert storm.after([*preempted(500.0, "spot-2", kind="notice"), *preempted(620.0, "spot-2")]) == ""
    assert storm.after([DeviceEvent("reserved-1", "reserved", "lost", 500.0)]) == ""
    assert storm.after(preempted(700.0, "spot-3", "spot-4")) == "", "five, though not within ten minutes"
    assert storm.after(preempted(1100.0, "spot-5")) == "", "four, from 500 on"
    assert storm.after(preempted(1100.0, "spot-6")) == "5 spot devices were preempted within 10 minutes"
    assert storm.after(preempted(1101.0, "spot-6", "spot-7")) == "", "these belong to the storm that was told"


def test_devices_are_noted_where_one_of_another_kind_has_joined():
    facts: list[tuple[str, str, str]] = []
    kinds = {"cpu"}
    session: Any = SimpleNamespace(
        run_id="r",
        runtime=SimpleNamespace(device_kinds=lambda: set(kinds)),
        store=SimpleNamespace(set_fact=lambda *fact: facts.append(fact)),
        devices_noted={"NVIDIA H100"},  # of the life before
    )
    for _ in range(2):
        Session.note_devices(session)
    assert facts == [("r", "devices", "NVIDIA H100, cpu")]


def test_each_last_step_is_done_even_if_one_before_it_fails():
    done: list[str] = []

    def refuse() -> None:
        raise StorageError("disk full")

    def divide() -> None:
        raise ZeroDivisionError

    with pytest.raises(StorageError, match="disk full"):
        _finish(refuse, lambda: done.append("mirror"), divide, lambda: done.append("readers"))
    assert done == ["mirror", "readers"]


def test_a_person_who_stops_a_run_waits_for_no_last_step():
    def stop() -> None:
        raise Stopped(signal.SIGTERM, "by a person")

    with pytest.raises(Stopped):
        _finish(stop, lambda: pytest.fail("is not begun"))
