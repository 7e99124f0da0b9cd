"""A driver whose run another process has taken over: it changes nothing more, and learns why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from storage.config.run_config import RunConfig
from storage.errors import TakenOverError
from storage.record.files import read_json, write_json
from storage.record.records import IterationRecord
from storage.record.run_folder import COMPACTED_AT, RUN_FILE
from storage.record.run_status import RunLog, read_activity
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows
from tests.sample_run import evaluation_record
from tests.tampering import set_run


def record(iteration: int, value: float = 0.0) -> IterationRecord:
    return IterationRecord("r", iteration, iteration, 0.0, 1.0, {"value": value})


def save(store: RunStore, iteration: int, value: float = 0.0) -> None:
    rows = iteration_rows(record(iteration, value))
    store.checkpoints("r").save(iteration, {"weights": b"%d" % value}, {}, rows)


def take_over(driver: RunStore) -> RunStore:
    """Have another process continue a run, as if the first one's machine were gone."""
    set_run(driver, "r", host="elsewhere")
    taker = RunStore(driver.home)
    taker.take_over(taker.run("r"))
    taker.resume_run("r", os.getpid())
    return taker


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def driver(store: RunStore) -> RunStore:
    """A store that drives a run with enough iterations for a compaction, and two checkpoints."""
    store.create_run("r", RunConfig(), {}, os.getpid())
    for iteration in range(1, COMPACTED_AT + 1):
        store.commit_iteration(record(iteration))
    for iteration in (COMPACTED_AT + 1, COMPACTED_AT + 2):
        save(store, iteration)
    return store


CHANGES: dict[str, Callable[[RunStore], Any]] = {
    "iteration": lambda driver: driver.commit_iteration(record(COMPACTED_AT + 3)),
    "repeated iteration": lambda driver: driver.commit_iteration(record(2, 1.0)),
    "evaluation": lambda driver: driver.commit_evaluation(evaluation_record("r", 2, 0.0, 1)),
    "checkpoint": lambda driver: save(driver, COMPACTED_AT + 3),
    "pinned checkpoint": lambda driver: driver.checkpoints("r").pin(COMPACTED_AT + 1),
    "dropped checkpoints": lambda driver: driver.checkpoints("r").drop_after(COMPACTED_AT + 1),
    "unfinished work": lambda driver: driver.note_unfinished("r", "iteration", COMPACTED_AT + 3, {}),
    "settled work": lambda driver: driver.settle_unfinished("r"),
    "discarded iterations": lambda driver: driver.discard_after("r", 3),
    "compaction": lambda driver: driver.folder("r").compact(),
    "status": lambda driver: driver.set_status("r", "finished"),
    "summary": lambda driver: driver.set_summary("r", {"score": 1.0}),
    "fact": lambda driver: driver.set_fact("r", "device", "cpu"),
    "event": lambda driver: driver.add_event("r", "worker_lost", "spot-0"),
    "link": lambda driver: driver.link("r", "prefect", "http://127.0.0.1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_driver_that_was_taken_over_changes_nothing_and_is_told(driver: RunStore, change: str):
    taker = take_over(driver)
    before = content(taker.folder("r").path)
    with pytest.raises(TakenOverError) as raised:
        CHANGES[change](driver)
    assert content(taker.folder("r").path) == before
    row = taker.run("r")
    said = f"another process has taken over run 'r' (process {os.getpid()} on {row.host}, since "
    assert str(raised.value).startswith(said)
    kept = f"this one stops, and nothing of it is kept after iteration {COMPACTED_AT + 2}"
    assert str(raised.value).endswith(kept)
    CHANGES[change](taker)  # nothing stops the run's driver


def test_a_driver_that_was_taken_over_ends_no_phase_of_the_taker(driver: RunStore):
    log = RunLog(driver.home, "r", driver)
    with log.phase("train"):
        taker = take_over(driver)
        before = content(taker.folder("r").path)
    log.note("ended")
    assert content(taker.folder("r").path) == before
    assert list(read_activity(driver.home, "r").phases) == ["train"]
    RunLog(driver.home, "r", taker).note("from its driver")
    assert content(taker.folder("r").path) != before


def test_a_taker_of_an_earlier_version_is_named_too(driver: RunStore):
    taker = take_over(driver)
    file = taker.folder("r").path / RUN_FILE
    run = read_json(file)
    del run["driven_since"], run["resumed_after"]
    write_json(file, run)
    with pytest.raises(TakenOverError) as raised:
        driver.add_event("r", "note", "x")
    said = f"another process has taken over run 'r' (process {os.getpid()} on {run['host']}); this one stops"
    assert str(raised.value) == f"{said}, and nothing of it is kept after the last checkpoint"


def test_the_events_tell_that_a_run_was_taken_over(driver: RunStore):
    taker = take_over(driver)
    [event] = [event for event in taker.folder("r").events() if event["kind"] == "taken_over"]
    assert event["message"] == f"by {taker.run('r').host}, from process {os.getpid()} of elsewhere"


def test_a_take_over_in_the_middle_of_a_save_leaves_the_taker_s_rows(driver: RunStore):
    """Both write the same iteration, and the taker is first to rename it."""
    taken: list[RunStore] = []
    number = COMPACTED_AT + 3

    def late(file: IO[bytes]) -> None:
        taken.append(take_over(driver))
        save(taken[0], number, 2.0)
        file.write(b"")

    with pytest.raises(TakenOverError):
        driver.folder("r").put(f"iteration-{number:06d}", {"samples": late, "iterations": late})
    found = taken[0].checkpoints("r").load_latest()
    assert found is not None
    assert (found.iteration, found.blobs) == (number, {"weights": b"2"})
    with taken[0].reading("r") as connection:
        query = "SELECT value FROM iteration_metrics WHERE iteration = ?"
        assert connection.execute(query, [number]).fetchall() == [(2.0,)]


def test_locks_that_do_not_see_each_other_are_not_needed(driver: RunStore, monkeypatch: pytest.MonkeyPatch):
    """On a file system that hosts share, flock may be local to each host."""
    taker = take_over(driver)
    monkeypatch.setattr("storage.record.files.fcntl.flock", lambda *_: None)
    with pytest.raises(TakenOverError):
        driver.commit_iteration(record(COMPACTED_AT + 3))
    taker.commit_iteration(record(COMPACTED_AT + 3))


def test_a_driver_may_resume_its_run_once_the_taker_has_ended(driver: RunStore):
    take_over(driver).set_status("r", "interrupted")
    with pytest.raises(TakenOverError):
        driver.add_event("r", "note", "x")
    driver.resume_run("r", os.getpid())
    driver.add_event("r", "note", "x")


def test_a_person_s_changes_are_not_a_driver_s(driver: RunStore):
    take_over(driver)
    RunStore(driver.home).change_notes("r", note="seen")
    RunStore(driver.home).add_event("r", "note", "x")


def test_a_folder_that_vanishes_while_nobody_has_taken_over_is_the_disk_s_fault(driver: RunStore):
    def vanished(file: IO[bytes]) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(FileNotFoundError):
        driver.folder("r").put("iteration-000099", {"samples": vanished})
