"""The record of a run against a model in memory, with kills and full disks at any call to the file system."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.config.run_config import RunConfig
from storage.errors import StorageError
from storage.home import Home
from storage.record.records import IterationRecord, PaidTime, SampleRecord, StateInterval
from storage.record.run_store import RunStore


class Killed(BaseException):
    """In place of a process that is gone: no clean-up runs on disk, since every call raises from then on."""


CALLS = ("rename", "mkdir", "fsync", "unlink", "rmdir", "replace", "write")
"""Functions of `os` that change the disk, by which `pathlib` and `shutil` work too."""


class Faulty:
    """Lets so many calls to the file system pass, then fails."""

    def __init__(self, patch: pytest.MonkeyPatch, passing: int, kill: bool) -> None:
        self.left, self.kill, self.met = passing, kill, False
        for name in CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                return call(*arguments, **named)
            if self.met and not self.kill:
                return call(*arguments, **named)
            self.met = True
            raise Killed if self.kill else OSError(errno.ENOSPC, "No space left on device")

        return counted


def record(iteration: int, life: int) -> IterationRecord:
    """An iteration whose every figure tells which life of the run made it."""
    sample = SampleRecord(0, "p", iteration, iteration - 1, 0.5, True, "", None, 0, None, 0.1, f"spot-{life}")
    state = StateInterval("spot-0", "spot", "rollout", iteration + life / 1000, iteration + 0.5, 2.0)
    return IterationRecord(
        "r", iteration, iteration, float(iteration), iteration + 1.0, {"life": float(life)}, [sample],
        intervals=[state], paid_time=[PaidTime("spot-0", "spot", 0.5 - life / 1000)],
    )  # fmt: skip


class RecordedRun(RuleBasedStateMachine):
    """A run that is recorded, discarded, compacted and killed: what was acknowledged is there once."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = RunStore(Home(self.folder))
        self.store.create_run("r", RunConfig(), {}, os.getpid())
        self.patch = pytest.MonkeyPatch()
        self.life = 0
        self.committed: dict[int, int] = {}  # iteration -> life
        self.given_up: list[float] = []  # seconds paid for discarded iterations
        self.events: list[str] = []
        self.checked = True

    @property
    def last(self) -> int:
        return max(self.committed, default=0)

    @rule(count=strategies.integers(1, 4))
    def commit(self, count: int) -> None:
        for iteration in range(self.last + 1, self.last + 1 + count):
            self.store.commit_iteration(record(iteration, self.life))
            self.committed[iteration] = self.life

    @precondition(lambda self: self.committed)
    @rule()
    def commit_again(self) -> None:
        self.store.commit_iteration(record(self.last, self.committed[self.last]))

    @rule(back=strategies.integers(0, 4))
    def resume(self, back: int) -> None:
        self._discard(max(0, self.last - back))

    @rule(behind=strategies.integers(1, 3))
    def compact(self, behind: int) -> None:
        self.store.folder("r").compact(before=max(1, self.last - behind), at_least=2)

    @rule()
    def sweep(self) -> None:
        self.store.folder("r").sweep(stay_s=-1)

    @rule()
    def event(self) -> None:
        self.store.add_event("r", "note", str(len(self.events)))
        self.events.append(str(len(self.events)))

    @rule(
        what=strategies.sampled_from(["commit", "resume", "compact", "finish", "sweep"]),
        passing=strategies.integers(0, 60),
        kill=strategies.booleans(),
    )
    def fault(self, what: str, passing: int, kill: bool) -> None:
        """Do it with a kill or a full disk somewhere; then a new life resumes from what is there."""
        before = dict(self.committed)
        iteration = self.last + 1
        actions: dict[str, Callable[[], None]] = {
            "commit": lambda: self.store.commit_iteration(record(iteration, self.life)),
            "resume": lambda: self.store.discard_after("r", max(0, self.last - 2)),
            "compact": lambda: self.store.folder("r").compact(before=max(1, self.last), at_least=1),
            "finish": lambda: self.store.folder("r").compact(at_least=1),
            "sweep": lambda: self.store.folder("r").sweep(stay_s=-1),
        }
        failed = False
        with pytest.MonkeyPatch.context() as patch:
            Faulty(patch, passing, kill)
            try:
                actions[what]()
            except (Killed, StorageError):
                failed = True
        there = self._lives()
        if what == "commit":
            assert there in (before, before | {iteration: self.life}), "the whole iteration, or nothing of it"
            assert failed or iteration in there, "an acknowledged iteration is there"
        elif what == "resume":
            kept = max(0, max(before, default=0) - 2)
            assert there == {i: life for i, life in before.items() if i <= max([kept, *there])}
        else:
            assert there == before
        for gone in set(before) - set(there):
            self.given_up.append(0.5 - before[gone] / 1000)
        self.committed = there
        self._discard(max(0, self.last - 1))

    @invariant()
    def all_is_there_once(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self._lives() == self.committed
        expected = [0.5 - life / 1000 for life in self.committed.values()]
        paid = sorted(self._column("paid_time", "paid_s"))
        assert paid == pytest.approx(sorted([*expected, *self.given_up]))
        assert self.store.run("r").last_iteration == (self.last or None)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        with RunStore(self.store.home).reading("r") as connection:
            states = connection.execute("SELECT phase, state FROM worker_states").fetchall()
            lives = connection.execute("SELECT iteration, worker[6:]::INTEGER FROM samples").fetchall()
            messages = connection.execute("SELECT message FROM events ORDER BY event_id").fetchall()
        assert sorted(states) == sorted(
            [("discarded", "lost")] * len(self.given_up) + [("iteration", "rollout")] * len(self.committed)
        )
        assert sorted(lives) == sorted(self.committed.items())
        assert [message for (message,) in messages] == self.events
        shutil.rmtree(self.folder)

    def _lives(self) -> dict[int, int]:
        """Iteration -> the life that made it, by each of its tables."""
        lives = [int(worker.removeprefix("spot-")) for worker in self._column("samples", "worker")]
        found = sorted(zip(self._column("samples", "iteration"), lives, strict=True))
        figured, figures = (self._column("iteration_metrics", column) for column in ("iteration", "value"))
        assert sorted(zip(figured, figures, strict=True)) == found
        assert sorted(self._column("iterations", "iteration")) == [iteration for iteration, _ in found]
        assert len(dict(found)) == len(found), "no iteration twice"
        return dict(found)

    def _column(self, table: str, column: str) -> list[Any]:
        listing = self.store.folder("r").listing()
        files = [*listing.files(table), *listing.files(table, discarded=True)]
        return [value for file in files for value in pq.read_table(file)[column].to_pylist()]

    def _discard(self, kept: int) -> None:
        self.store.discard_after("r", kept)
        for gone in [iteration for iteration in self.committed if iteration > kept]:
            self.given_up.append(0.5 - self.committed.pop(gone) / 1000)
        self.life += 1


TestRecordedRun = RecordedRun.TestCase
TestRecordedRun.settings = settings(deadline=None, stateful_step_count=12)
