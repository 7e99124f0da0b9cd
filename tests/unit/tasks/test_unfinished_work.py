"""Paid work without a record: on the bill and in the budget, however a run ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, StorageError
from storage.home import Home
from storage.record.ledger import read_ledger
from storage.record.records import JUDGE_USD, Collected, PaidTime, StateInterval
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows
from tasks.iteration import unfinished
from tasks.iteration.budget import refuse_spent_budget, spending
from tasks.iteration.session import Session, close_runtime, open_session
from tasks.iteration.unfinished import UnfinishedWork
from tests.sample_run import iteration_record

AT = 1_700_000_000.0
ITERATION_USD = 18 * 16.0 / 3600
"""18 s of three devices at 10.98, 2.51 and 2.51 dollars an hour."""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(Home(tmp_path).ensure())
    store.create_run("r", RunConfig(), {}, os.getpid())
    for iteration in (1, 2):
        store.commit_iteration(iteration_record("r", iteration, AT + 18 * iteration, 8))
    return store


def done(hours: float, judge_usd: float = 0.0, evaluation_judge_usd: float = 0.0) -> Collected:
    """One device's work after iteration 2, at ten dollars an hour."""
    begin = AT + 54
    interval = StateInterval("reserved-0", "reserved", "rollout", begin, begin + 3600 * hours, 10.0)
    paid = [PaidTime("reserved-0", "reserved", 3600 * hours)]
    return Collected(
        intervals=[interval], paid_time=paid, judge_usd=judge_usd, evaluation_judge_usd=evaluation_judge_usd
    )


def bill(store: RunStore) -> tuple[float, float]:
    """Dollars for devices, those for discarded work, both beyond the two iterations."""
    with store.reading("r") as connection:
        ledger = read_ledger(connection, "r")
        (discarded,) = connection.execute(
            "SELECT coalesce(sum(usd), 0) FROM costs WHERE phase = 'discarded' AND state = 'lost'"
        ).fetchall()
    return ledger.spent().usd - 2 * ITERATION_USD, discarded[0]


def used_usd(store: RunStore) -> float:
    return spending(store, "r").usd - 2 * ITERATION_USD


def leftovers(store: RunStore) -> list[str]:
    return sorted(path.name for path in store.folder("r").path.glob("*iteration-00000[3-9]"))


def test_the_work_so_far_is_written_at_most_once_a_minute(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    at_s = [1000.0]
    monkeypatch.setattr(unfinished.time, "monotonic", lambda: at_s[0])
    work, asked = UnfinishedWork(store, "r"), list[float]()

    def so_far() -> Collected:
        asked.append(at_s[0])
        return done(0.1)

    work.begin("iteration", 3)
    for now_s in (1000.0, 1030.0, 1059.0, 1061.0, 1062.0):
        at_s[0] = now_s
        work.look(so_far)
    assert asked == [1000.0, 1061.0]
    assert leftovers(store) == ["unfinished-iteration-000003"]
    assert (bill(store), used_usd(store)) == ((pytest.approx(0.0), 0.0), pytest.approx(0.0)), "not yet"


def test_what_a_killed_process_had_written_counts_as_soon_as_it_is_found_dead(store: RunStore):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    work = UnfinishedWork(store, "r")
    for hours in (0.1, 0.2):  # the second life repeats the iteration, and is killed too
        store.resume_run("r", child.pid) if hours == 0.2 else store.set_status("r", "running")
        work = UnfinishedWork(store, "r")
        work.begin("iteration", 3)
        work.look(lambda hours=hours: done(hours, judge_usd=1.0))
        if hours == 0.1:
            store.set_status("r", "interrupted")
            store.discard_after("r", 2)
    assert store.reconcile() == ["r"]
    assert bill(store) == (pytest.approx(3.0), pytest.approx(3.0))
    assert used_usd(store) == pytest.approx(3.0 + 2.0)
    assert leftovers(store) == ["discarded-0001-iteration-000003", "discarded-0002-iteration-000003"]
    row, config = store.run("r"), RunConfig.model_validate({"budget": {"usd": 4.9}, "iterations": 9})
    with pytest.raises(ConfigurationError, match=r"the run has used \$5"):
        refuse_spent_budget(store, row, config)


def test_a_run_that_never_finishes_its_first_iteration_is_not_resumed_forever(tmp_path: Path):
    store = RunStore(Home(tmp_path).ensure())
    store.create_run("r", RunConfig(), {}, os.getpid())
    config = RunConfig.model_validate({"budget": {"usd": 2.5}, "iterations": 9})
    for _ in range(2):  # each life costs $1.50
        refuse_spent_budget(store, store.run("r"), config)
        work = UnfinishedWork(store, "r")
        work.begin("iteration", 1)
        work.end(done(0.1, judge_usd=0.5))
    with pytest.raises(ConfigurationError, match=r"iteration 0 of 9 the run has used \$3.*interrupted"):
        refuse_spent_budget(store, store.run("r"), config)


def test_a_record_replaces_what_was_written_before_it(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unfinished, "NOTE_EVERY_S", 0.0)
    work = UnfinishedWork(store, "r")
    work.begin("iteration", 3)
    work.look(lambda: done(0.1))
    record = iteration_record("r", 3, AT + 54, 8)
    work.collected()
    work.begin("iteration", 4)
    with work.committing("iteration", 3, iteration_rows(record)):
        work.look(lambda: done(0.2))
        assert leftovers(store) == ["unfinished-iteration-000003", "unfinished-iteration-000004"]
        store.commit_iteration(record)
    work.look(lambda: done(0.3))
    assert leftovers(store) == ["iteration-000003", "unfinished-iteration-000004"]
    work.is_cut_off = False
    work.end(done(0.4))
    assert leftovers(store) == ["iteration-000003"], "of a finished run nothing is lost"
    assert bill(store) == (pytest.approx(ITERATION_USD), 0.0)


def test_a_finished_iteration_that_a_kill_keeps_from_being_recorded_counts_whole(store: RunStore):
    """A checkpoint may take minutes, in which the next iteration is under way."""
    work, record = UnfinishedWork(store, "r"), iteration_record("r", 3, AT + 54, 8)
    record.metrics[JUDGE_USD] = 0.5
    work.collected()
    work.begin("iteration", 4)
    with work.committing("iteration", 3, iteration_rows(record)):
        work.look(lambda: done(0.1))
    store.discard_after("r", 1)
    assert bill(store)[1] == pytest.approx(2 * ITERATION_USD + 1.0), "with iteration 2, which is repeated"
    assert used_usd(store) == pytest.approx(ITERATION_USD + 1.0 + 0.5)
    store.discard_after("r", 1)
    assert used_usd(store) == pytest.approx(ITERATION_USD + 1.0 + 0.5), "once"


def test_a_commit_that_outlasts_the_run_is_not_discarded_too(store: RunStore):
    work, record = UnfinishedWork(store, "r"), iteration_record("r", 3, AT + 54, 8)
    work.collected()
    work.begin("iteration", 4)
    with work.committing("iteration", 3, iteration_rows(record)):
        work.end(done(0.1))
        assert leftovers(store) == ["discarded-0001-iteration-000004", "unfinished-iteration-000003"]
        store.commit_iteration(record)
    store.discard_after("r", 3)
    assert leftovers(store) == ["discarded-0001-iteration-000004", "iteration-000003"]
    assert bill(store) == (pytest.approx(ITERATION_USD + 1.0), pytest.approx(1.0))


def test_a_commit_that_fails_leaves_its_work_to_the_bill(store: RunStore):
    work, record = UnfinishedWork(store, "r"), iteration_record("r", 3, AT + 54, 8)
    work.collected()
    work.begin("iteration", 4)
    with pytest.raises(StorageError), work.committing("iteration", 3, iteration_rows(record)):
        raise StorageError("the disk is full")
    work.end(done(0.0))
    assert bill(store) == (pytest.approx(ITERATION_USD), pytest.approx(ITERATION_USD))


def test_the_same_work_counts_once_under_another_name(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    """Devices' start is first an iteration's work, then part of the evaluation before it."""
    monkeypatch.setattr(unfinished, "NOTE_EVERY_S", 0.0)
    work = UnfinishedWork(store, "r")
    work.begin("iteration", 3)
    work.look(lambda: done(0.1))
    work.begin("evaluation", 2)
    work.look(lambda: done(0.2))
    assert leftovers(store) == [], "no iteration is left"
    work.end(done(0.3))
    assert bill(store) == (pytest.approx(3.0), pytest.approx(3.0))
    work.look(lambda: done(0.4))
    assert bill(store) == (pytest.approx(3.0), pytest.approx(3.0)), "a late look in another thread"


@pytest.mark.parametrize("phase", ["iteration", "evaluation"])
def test_a_run_that_is_cancelled_or_fails_completes_the_bill(store: RunStore, phase: str):
    work = UnfinishedWork(store, "r")
    work.begin(phase, 3 if phase == "iteration" else 2)
    work.look(lambda: done(0.1))
    left = done(0.2, judge_usd=0.25, evaluation_judge_usd=0.5)
    left.notes.append("i-1 may still be rented")
    runtime: Any = SimpleNamespace(close=lambda: None, collect=lambda: left)
    close_runtime(runtime, store, "r", work)
    assert bill(store) == (pytest.approx(2.0), pytest.approx(2.0))
    assert used_usd(store) == pytest.approx(2.75)
    assert [event["message"] for event in store.folder("r").events()] == ["i-1 may still be rented"]


def test_a_session_leaves_what_it_collects_to_the_record(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unfinished, "NOTE_EVERY_S", 0.0)
    nothing: Any = None
    runtime: Any = SimpleNamespace(collect=lambda: done(0.1))
    session = Session("r", RunConfig(), runtime, store, nothing, nothing, ExitStack())
    session.unfinished.begin("iteration", 3)
    session.unfinished.look(lambda: done(0.1))
    session.collect(4)
    session.unfinished.look(lambda: done(0.2))
    assert leftovers(store) == ["unfinished-iteration-000003", "unfinished-iteration-000004"]


class Restored:
    """A runtime that looks while it restores, as any does that takes half a second for it."""

    def __init__(self, *_: object) -> None:
        self.explorer = SimpleNamespace(
            strategy=SimpleNamespace(repeat=lambda *_: None, decisions=lambda: ())
        )
        self.look: Callable[[], None] = lambda: None

    def on_look(self, call: Callable[[], None]) -> None:
        self.look = call

    def restore(self, *_: object) -> None:
        self.look()

    def so_far(self) -> Collected:
        return done(0.1)

    def collect(self) -> Collected:
        return done(0.2)

    def device_kinds(self) -> set[str]:
        return set()

    def close(self) -> None:
        pass


def test_a_resumed_run_pays_once_for_its_start(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    rows, state = iteration_rows(iteration_record("r", 2, AT + 36, 8)), {"policy_version": 2}
    store.checkpoints("r").save(
        2, {"weights": b"w"}, {**state, "explorer_state": {}, "next_plan": None}, rows
    )
    monkeypatch.setattr("tasks.iteration.session.Runtime", Restored)
    monkeypatch.setattr("tasks.iteration.session.open_cluster", lambda *_: nullcontext())
    session = open_session(store.home, store, "r", RunConfig.model_validate({"tracking": {"to": []}}), None)
    assert leftovers(store) == ["unfinished-iteration-000003"]
    session.__exit__(KeyboardInterrupt, KeyboardInterrupt())
    assert bill(store) == (pytest.approx(2.0), pytest.approx(2.0))


def test_work_before_the_checkpoint_is_restored_counts_beside_what_is_recorded(store: RunStore):
    UnfinishedWork(store, "r").end(done(0.1))
    assert leftovers(store) == ["discarded-0001-iteration-000003"]


def test_a_full_disk_ends_no_run_here(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("storage.record.run_store.RunStore.known", full)
    work = UnfinishedWork(store, "r")
    work.look(lambda: done(0.1))
    work.end(done(0.2))
