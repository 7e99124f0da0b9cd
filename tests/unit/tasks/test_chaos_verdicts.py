"""Messages of `spotlight chaos` about runs that break a promise; tests/fault has real faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import IterationRecord, PaidTime, StateInterval
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows
from tasks.chaos.faults import digests, judged

CONFIG = RunConfig(iterations=1)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path).ensure())


def ran(
    store: RunStore, run_id: str, weights: bytes, config: RunConfig = CONFIG, twice: bool = False
) -> None:
    """Record a finished run whose only device trained for ten seconds, or seems to have done so twice."""
    store.create_run(run_id, config, {}, 1)
    works = StateInterval("reserved-0", "reserved", "train", 100.0, 110.0, 1.0)
    record = IterationRecord(run_id, 1, 1, 100.0, 110.0, {})
    record.intervals.extend([works] * (1 + twice))
    record.paid_time.append(PaidTime("reserved-0", "reserved", 10.0))
    blobs = {"weights.safetensors": weights}
    CheckpointStore(store.home.run(run_id)).save(1, blobs, record.state, iteration_rows(record))
    store.set_status(run_id, "finished")


def said(store: RunStore, *run_ids: str) -> dict[str, Any]:
    ran(store, "undisturbed", b"right")
    return judged(store.home, run_ids, digests(store.home, "undisturbed")[1])


def test_runs_that_keep_their_promises_break_none(store: RunStore):
    ran(store, "a", b"right")
    ran(store, "b", b"right")
    found = said(store, "a", "b")
    assert (found["identical_weights"], found["ledger_adds_up"], found["broken_promises"]) == (True, True, [])


def test_one_run_of_two_is_enough_to_break_a_promise(store: RunStore):
    ran(store, "good", b"right")
    ran(store, "other", b"wrong")
    ran(store, "twice", b"right", twice=True)
    ran(store, "ended", b"right")
    store.set_status("ended", "failed", "a worker is gone")
    found = said(store, "other", "twice", "ended", "good")
    assert (found["identical_weights"], found["ledger_adds_up"]) == (False, False)
    weights, ledger, ended = found["broken_promises"]
    assert weights == "run other ended with other weights than the undisturbed run"
    assert "the ledger of twice does not add up" in ledger and "a device was in two 1 times" in ledger
    assert ended == "run ended is failed, not finished: a worker is gone"


def test_devices_that_share_samples_are_promised_no_bits(store: RunStore):
    ran(store, "shared", b"other", CONFIG.changed(sequence_parallel={"rollout": 2}))
    found = said(store, "shared")
    assert (found["identical_weights"], found["broken_promises"]) == (False, [])
